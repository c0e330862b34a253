// RocketMQ's Go client says `ok` for every step that a broker does right. Arguments: endpoint, a name for topics.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func check(right bool, step string) {
	if !right {
		fmt.Println("wrong " + step)
		os.Exit(1)
	}
	fmt.Println("ok " + step)
}

func fine(failure error) {
	if failure != nil {
		fmt.Println("wrong", failure)
		os.Exit(1)
	}
}

func one(consumer rmq.SimpleConsumer) *rmq.MessageView {
	for {
		found, failure := consumer.Receive(context.Background(), 1, 30*time.Second)
		if failure == nil && len(found) > 0 {
			return found[0]
		}
	}
}

func main() {
	os.Setenv("mq.consoleAppender.enabled", "false")
	rmq.ResetLogger()
	endpoint, topic := os.Args[1], "go-"+os.Args[2]
	configuration := &rmq.Config{Endpoint: endpoint, ConsumerGroup: "g", Credentials: &credentials.SessionCredentials{}}
	producer, failure := rmq.NewProducer(configuration, rmq.WithTopics(topic))
	fine(failure)
	fine(producer.Start())
	message := &rmq.Message{Topic: topic, Body: []byte("hello")}
	message.SetTag("a")
	message.SetKeys("k")
	message.AddProperty("p", "v")
	sent, failure := producer.Send(context.Background(), message)
	fine(failure)
	consumer, failure := rmq.NewSimpleConsumer(configuration, rmq.WithSimpleAwaitDuration(20*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	fine(failure)
	fine(consumer.Start())
	found := one(consumer)
	check(string(found.GetBody()) == "hello" && found.GetMessageId() == sent[0].MessageID, "received")
	check(*found.GetTag() == "a" && found.GetKeys()[0] == "k" && found.GetProperties()["p"] == "v", "described")
	fine(consumer.Ack(context.Background(), found))
	check(true, "acknowledged")
	os.Exit(0)
}
