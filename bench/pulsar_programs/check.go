// Pulsar's Go client says `ok` for every step that a broker does right. Arguments: service URL, URL of the admin
// REST, a suffix for topics.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const patience = 60 * time.Second

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

func within(limit time.Duration) context.Context {
	found, _ := context.WithTimeout(context.Background(), limit)
	return found
}

// Sends that are under way when the topic is terminated, and those after them, end with an error.
func terminated(client pulsar.Client, admin, suffix string) {
	topic := "go-terminated-" + suffix
	// Without a time limit of the client's own, a send ends only if the broker's answers let it end. Without
	// batches: the client itself forgets messages of a batch that it has not sent when the topic is terminated.
	producer, failure := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, SendTimeout: -1, DisableBatching: true})
	fine(failure)
	go func() {
		time.Sleep(300 * time.Millisecond)
		request, _ := http.NewRequest("POST", admin+"/admin/v2/persistent/public/default/"+topic+"/terminate", nil)
		answer, failure := http.DefaultClient.Do(request)
		fine(failure)
		check(answer.StatusCode == 200, "terminates")
	}()
	refused := make(chan error, 1)
	for sent := 0; ; sent++ {
		done := make(chan struct{})
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: make([]byte, 100)},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, failure error) {
				if failure != nil {
					select {
					case refused <- failure:
					default:
					}
				}
				close(done)
			})
		if sent%10 == 9 {
			select {
			case <-done:
			case <-time.After(patience):
				check(false, "terminated: a send does not end")
			}
			if len(refused) > 0 {
				break
			}
		}
	}
	_, failure = producer.Send(within(patience), &pulsar.ProducerMessage{Payload: []byte("late")})
	check(failure != nil && failure != context.DeadlineExceeded, "terminated")
	producer.Close()
}

// Messages as bytes between those of a schema.
func schemas(client pulsar.Client, suffix string) {
	topic := "go-schema-" + suffix
	definition := `{"type":"record","name":"E","fields":[{"name":"a","type":"int"}]}`
	producer, failure := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, Schema: pulsar.NewJSONSchema(definition, nil)})
	fine(failure)
	consumer, failure := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	fine(failure)
	_, failure = producer.Send(within(patience), &pulsar.ProducerMessage{
		Payload: []byte("raw"), Schema: pulsar.NewBytesSchema(nil)})
	fine(failure)
	message, failure := consumer.Receive(within(patience))
	fine(failure)
	check(string(message.Payload()) == "raw" && message.SchemaVersion() == nil, "bytes beside a schema")
}

func main() {
	quiet := log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	client, failure := pulsar.NewClient(pulsar.ClientOptions{URL: os.Args[1], Logger: quiet})
	fine(failure)
	defer client.Close()
	terminated(client, os.Args[2], os.Args[3])
	schemas(client, os.Args[3])
}
