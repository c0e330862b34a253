// RocketMQ's Java client says `ok` for every step that a broker does right. Arguments: endpoint, a name for topics.
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Check {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;
    static Producer producer;

    public static void main(String[] arguments) throws Exception {
        String name = "java-" + arguments[1];
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)).build();
        CountDownLatch asked = new CountDownLatch(1);
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(name, name + "-f", name + "-d", name + "-t", name + "-p")
            .setTransactionChecker(view -> {
                asked.countDown();
                return TransactionResolution.COMMIT;
            }).build();

        SendReceipt sent = producer.send(message(name, "hello").setTag("a").setKeys("k").addProperty("p", "v").build());
        SimpleConsumer consumer = consumer(name, new FilterExpression("a || b", FilterExpressionType.TAG));
        MessageView found = one(consumer, 30);
        check(found.getMessageId().equals(sent.getMessageId()) && text(found).equals("hello"), "received");
        check(found.getTag().get().equals("a") && found.getKeys().contains("k")
            && found.getProperties().get("p").equals("v") && found.getDeliveryAttempt() == 1, "described");
        consumer.changeInvisibleDuration(found, Duration.ofMillis(200));
        MessageView again = one(consumer, 30);
        check(again.getDeliveryAttempt() == 2, "redelivered");
        consumer.ack(again);
        check(true, "acknowledged");

        for (int number = 0; number < 5; number++) {
            producer.send(message(name + "-f", "" + number).setMessageGroup("g").build());
        }
        SimpleConsumer ordered = consumer(name + "-f", FilterExpression.SUB_ALL);
        StringBuilder order = new StringBuilder();
        while (order.length() < 5) {
            for (MessageView one : ordered.receive(16, Duration.ofSeconds(30))) {
                order.append(text(one));
                ordered.ack(one);
            }
        }
        check(order.toString().equals("01234"), "ordered");

        long moment = System.currentTimeMillis() + 500;
        producer.send(message(name + "-d", "later").setDeliveryTimestamp(moment).build());
        SimpleConsumer patient = consumer(name + "-d", FilterExpression.SUB_ALL);
        MessageView late = one(patient, 30);
        check(text(late).equals("later") && System.currentTimeMillis() >= moment, "delayed");

        Transaction transaction = producer.beginTransaction();
        producer.send(message(name + "-t", "decided").build(), transaction);
        transaction.commit();
        SimpleConsumer waiting = consumer(name + "-t", FilterExpression.SUB_ALL);
        check(text(one(waiting, 30)).equals("decided"), "committed");

        CountDownLatch pushed = new CountDownLatch(1);
        PushConsumer push = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("g").setSubscriptionExpressions(Collections.singletonMap(name + "-p", FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                pushed.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        producer.send(message(name + "-p", "pushed").build());
        check(pushed.await(60, TimeUnit.SECONDS), "pushed");
        System.exit(0);
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static SimpleConsumer consumer(String topic, FilterExpression expression) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup("g")
            .setAwaitDuration(Duration.ofSeconds(20)).setSubscriptionExpressions(Collections.singletonMap(topic, expression)).build();
    }

    static MessageView one(SimpleConsumer consumer, int seconds) throws Exception {
        while (true) {
            List<MessageView> found = consumer.receive(1, Duration.ofSeconds(seconds));
            if (!found.isEmpty()) {
                return found.get(0);
            }
        }
    }

    static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        return StandardCharsets.UTF_8.decode(body.duplicate()).toString();
    }

    static void check(boolean right, String step) {
        System.out.println((right ? "ok " : "wrong ") + step);
        if (!right) {
            System.exit(1);
        }
    }
}
