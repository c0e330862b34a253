// Go's client of RabbitMQ against a broker: check HOST PORT NAME. Says `ok` for every step.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const count = 100
const patience = 60 * time.Second

func check(right bool, what string) {
	if !right {
		fmt.Println("WRONG", what)
		os.Exit(1)
	}
	fmt.Println("ok", what)
}

func must(err error) {
	if err != nil {
		fmt.Println("WRONG", err)
		os.Exit(1)
	}
}

func opened(connection *amqp.Connection) *amqp.Channel {
	channel, err := connection.Channel()
	must(err)
	return channel
}

func declared(channel *amqp.Channel) string {
	queue, err := channel.QueueDeclare("", false, false, true, false, nil)
	must(err)
	return queue.Name
}

func next(deliveries <-chan amqp.Delivery) amqp.Delivery {
	select {
	case delivery, ok := <-deliveries:
		check1(ok, "the consumer was closed")
		return delivery
	case <-time.After(patience):
		check(false, "nothing was delivered")
		panic("unreachable")
	}
}

func check1(right bool, what string) {
	if !right {
		check(false, what)
	}
}

func publishAndConsume(connection *amqp.Connection, name string) {
	ctx := context.Background()
	channel := opened(connection)
	must(channel.ExchangeDeclare(name, "topic", true, false, false, false, nil))
	_, err := channel.QueueDeclare(name, true, false, false, false, nil)
	must(err)
	must(channel.QueueBind(name, "a.#", name, false, nil))
	must(channel.Confirm(false))
	returned := channel.NotifyReturn(make(chan amqp.Return, 1))
	var confirms []*amqp.DeferredConfirmation
	for number := 0; number < count; number++ {
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, name, "a.b", false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(number))})
		must(err)
		confirms = append(confirms, confirm)
	}
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, name, "none", true, false,
		amqp.Publishing{Body: []byte("lost")})
	must(err)
	for _, each := range append(confirms, confirm) {
		check1(each.Wait(), "a publish was refused")
	}
	check(true, "confirmed")
	check((<-returned).ReplyCode == 312, "returned")

	must(channel.Qos(10, 0, false))
	deliveries, err := channel.Consume(name, "", false, false, false, false, nil)
	must(err)
	first := next(deliveries)
	must(first.Reject(true))
	again := false
	for number := 0; number < count; number++ {
		delivery := next(deliveries)
		again = again || (string(delivery.Body) == "0" && delivery.Redelivered)
		must(delivery.Ack(false))
	}
	check(again, "redelivered")
	_, err = channel.QueueDelete(name, false, false, false)
	must(err)
	must(channel.ExchangeDelete(name, false, false))
	must(channel.Close())
}

func failures(connection *amqp.Connection, name string) {
	_, err := opened(connection).QueueDeclarePassive(name+"-none", false, false, false, false, nil)
	var said *amqp.Error
	check(errors.As(err, &said) && said.Code == 404, "missing")
}

func cancelled(connection *amqp.Connection) {
	channel := opened(connection)
	queue := declared(channel)
	told := channel.NotifyCancel(make(chan string, 1))
	_, err := channel.Consume(queue, "mine", true, false, false, false, nil)
	must(err)
	_, err = opened(connection).QueueDelete(queue, false, false, false)
	must(err)
	check(<-told == "mine", "cancelled")
}

func replies(connection *amqp.Connection) {
	ctx := context.Background()
	server, client := opened(connection), opened(connection)
	queue := declared(server)
	asked, err := server.Consume(queue, "", true, false, false, false, nil)
	must(err)
	answers, err := client.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	must(err)
	must(client.PublishWithContext(ctx, "", queue, false, false,
		amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "7", Body: []byte("question")}))
	question := next(asked)
	must(server.PublishWithContext(ctx, "", question.ReplyTo, false, false,
		amqp.Publishing{CorrelationId: question.CorrelationId, Body: []byte("re: " + string(question.Body))}))
	answer := next(answers)
	check(string(answer.Body) == "re: question" && answer.CorrelationId == "7", "replied")
}

func main() {
	connection, err := amqp.Dial(fmt.Sprintf("amqp://guest:guest@%s:%s/", os.Args[1], os.Args[2]))
	must(err)
	name := "go-" + os.Args[3]
	publishAndConsume(connection, name)
	failures(connection, name)
	cancelled(connection)
	replies(connection)
	must(connection.Close())
}
