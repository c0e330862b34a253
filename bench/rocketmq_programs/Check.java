// RocketMQ's Java client says `ok` for every step that a broker does right. Arguments: endpoint, a name for topics.
// With WEIR_ADMIN, the address of the admin API, also of what an administrator says first.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.impl.ClientImpl;

public class Check {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final String ADMIN = System.getenv("WEIR_ADMIN");
    static final String GROUPS = "/admin/weir/v1/group-settings/public/default/";
    static ClientConfiguration configuration;
    static Producer producer;

    public static void main(String[] arguments) throws Exception {
        String name = "java-" + arguments[1];
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
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
        if (ADMIN != null) {
            administered(name, push);
        }
        System.exit(0);
    }

    static void administered(String name, PushConsumer push) throws Exception {
        String id = ((ClientImpl) push).getClientId().toString();
        check(said("POST", "/admin/weir/v1/clients/" + id + "/stack", "{}").contains("java.lang.Thread"), "asked for its stack");
        String topic = "persistent://public/default/" + name + "-p";
        String verified = said("POST", "/admin/weir/v1/clients/" + id + "/verify", "{\"topic\": \"" + topic + "\", \"offset\": 0}");
        check(verified.contains("OK"), "tried a message");

        String unlucky = name + "-unlucky";
        said("PUT", GROUPS + unlucky, "{\"fifo\": true, \"maxAttempts\": 2, \"schedule\": \"10ms\"}");
        BlockingQueue<String> tried = new LinkedBlockingQueue<>();
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(unlucky)
            .setSubscriptionExpressions(Collections.singletonMap(name + "-f", FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                tried.add(text(view));
                return text(view).equals("1") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        StringBuilder order = new StringBuilder();
        while (order.length() < 6) {
            order.append(tried.poll(60, TimeUnit.SECONDS));
        }
        check(order.toString().equals("011234"), "failed in order");
        check(text(one(consumer("%DLQ%" + unlucky, FilterExpression.SUB_ALL), 30)).equals("1"), "forwarded to dead letters");

        String lite = name + "-l";
        said("PUT", "/admin/v2/persistent/public/default/" + lite, "");
        said("PUT", "/admin/weir/v1/message-types/persistent/public/default/" + lite, "{\"types\": [\"lite\"]}");
        said("PUT", GROUPS + lite, "{\"liteExclusive\": true}");
        BlockingQueue<String> first = new LinkedBlockingQueue<>();
        BlockingQueue<String> second = new LinkedBlockingQueue<>();
        LitePushConsumer one = lite(lite, first);
        one.subscribeLite("chat-1");
        one.subscribeLite("chat-2");
        producer.send(message(lite, "a").setLiteTopic("chat-1").build());
        producer.send(message(lite, "not for it").setLiteTopic("chat-3").build());
        producer.send(message(lite, "b").setLiteTopic("chat-2").build());
        String both = first.poll(60, TimeUnit.SECONDS) + first.poll(60, TimeUnit.SECONDS);
        check(both.equals("ab") || both.equals("ba"), "pushed lite topics");
        LitePushConsumer other = lite(lite, second);
        other.subscribeLite("chat-1");
        while (one.getLiteTopicSet().contains("chat-1")) {
            Thread.sleep(5);
        }
        producer.send(message(lite, "c").setLiteTopic("chat-1").build());
        check("c".equals(second.poll(60, TimeUnit.SECONDS)) && first.isEmpty(), "told of a lite topic that it lost");
        said("DELETE", "/admin/v2/persistent/public/default/" + lite + "%25LITE%25chat-2?force=true", "");
        while (one.getLiteTopicSet().contains("chat-2")) {
            Thread.sleep(5);
        }
        check(true, "told of a lite topic that is deleted");
    }

    static LitePushConsumer lite(String topic, BlockingQueue<String> found) throws Exception {
        return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration).bindTopic(topic).setConsumerGroup(topic)
            .setMessageListener(view -> {
                found.add(text(view));
                return ConsumeResult.SUCCESS;
            }).build();
    }

    static String said(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(ADMIN + path)).header("content-type", "application/json")
            .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 300) {
            throw new IllegalStateException(path + ": " + answer.body());
        }
        return answer.body();
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
