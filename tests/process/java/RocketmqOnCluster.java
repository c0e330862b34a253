import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * A producer and a push consumer that do as they are told, line by line: "send N", "read". Of the N messages a third each is
 * normal, in order by message group, and of a transaction. What the client gives up is sent again until it is confirmed, so
 * messages may come twice. Arguments: endpoints; a topic of normal messages, one of ordered and one of transactions; a consumer
 * group that is in order.
 */
public class RocketmqOnCluster {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final int GROUPS = 4;
    static final long PATIENCE_MS = 240_000;
    /** What is confirmed, and what has come, by topic and number. */
    static final Set<String> stored = new ConcurrentSkipListSet<>();
    static final Set<String> found = new ConcurrentSkipListSet<>();
    /** Of each message group, the numbers in the order in which they first came. */
    static final Map<String, List<Integer>> orders = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        String normal = arguments[1], ordered = arguments[2], decided = arguments[3];
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(normal, ordered, decided).setTransactionChecker(view -> TransactionResolution.COMMIT).build();
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(arguments[4])
            .setSubscriptionExpressions(Map.of(normal, FilterExpression.SUB_ALL, ordered, FilterExpression.SUB_ALL, decided, FilterExpression.SUB_ALL))
            .setMessageListener(RocketmqOnCluster::take).build();
        int sent = 0;
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            if (words[0].equals("send")) {
                int count = Integer.parseInt(words[1]);
                for (int n = 0; n < count; n++, sent++) {
                    if (n == count / 3) {
                        System.out.println("> on the way");
                    }
                    switch (sent % 3) {
                        case 0: send(producer, message(normal, sent)); break;
                        case 1: send(producer, message(ordered, sent).setMessageGroup("g" + sent / 3 % GROUPS)); break;
                        default: decide(producer, message(decided, sent));
                    }
                    stored.add(new String[] {normal, ordered, decided}[sent % 3] + " " + sent);
                }
                System.out.println("> sent " + stored.size());
            } else {
                long until = System.currentTimeMillis() + PATIENCE_MS;
                while (!found.containsAll(stored) && System.currentTimeMillis() < until) {
                    Thread.sleep(20);
                }
                Set<String> missing = new TreeSet<>(stored);
                missing.removeAll(found);
                System.out.println("> read " + (stored.size() - missing.size()) + ", missing " + missing + ", out of order " + disordered());
            }
        }
        consumer.close();
        producer.close();
    }

    static MessageBuilder message(String topic, int number) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(("" + number).getBytes(StandardCharsets.UTF_8));
    }

    /** Until it is confirmed. */
    static void send(Producer producer, MessageBuilder message) throws Exception {
        while (true) {
            try {
                producer.send(message.build());
                return;
            } catch (ClientException | RuntimeException lost) {
                System.out.println("again: " + lost);
                Thread.sleep(200);
            }
        }
    }

    /** Prepared until that is confirmed; if the decision is not heard of, the producer is asked for it. */
    static void decide(Producer producer, MessageBuilder message) throws Exception {
        while (true) {
            try {
                Transaction transaction = producer.beginTransaction();
                producer.send(message.build(), transaction);
                try {
                    transaction.commit();
                } catch (ClientException | RuntimeException unknown) {
                    System.out.println("undecided: " + unknown);
                }
                return;
            } catch (ClientException | RuntimeException lost) {
                System.out.println("again: " + lost);
                Thread.sleep(200);
            }
        }
    }

    static synchronized ConsumeResult take(MessageView view) {
        String text = StandardCharsets.UTF_8.decode(view.getBody().duplicate()).toString();
        if (found.add(view.getTopic() + " " + text) && view.getMessageGroup().isPresent()) {
            orders.computeIfAbsent(view.getMessageGroup().get(), group -> new ArrayList<>()).add(Integer.parseInt(text));
        }
        return ConsumeResult.SUCCESS;
    }

    static synchronized List<String> disordered() {
        List<String> wrong = new ArrayList<>();
        orders.forEach((group, numbers) -> {
            for (int n = 1; n < numbers.size(); n++) {
                if (numbers.get(n - 1) > numbers.get(n)) {
                    wrong.add(group + " " + numbers);
                    break;
                }
            }
        });
        return wrong;
    }
}
