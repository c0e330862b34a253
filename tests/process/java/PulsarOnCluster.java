import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * A producer and a consumer that do as they are told, line by line: "send N", "read N". Each has a client of its own, with an
 * address of its own: what it is told is where others are.
 */
public class PulsarOnCluster {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[2];
        try (PulsarClient one = PulsarClient.builder().serviceUrl(arguments[0]).build();
                PulsarClient other = PulsarClient.builder().serviceUrl(arguments[1]).build();
                Producer<String> producer = one.newProducer(Schema.STRING).topic(topic)
                    .sendTimeout(0, TimeUnit.SECONDS).create();
                Consumer<String> consumer = other.newConsumer(Schema.STRING).topic(topic).subscriptionName("java")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            int sent = 0;
            // An acknowledgement that is on its way while the topic moves is lost: such a message comes again.
            TreeSet<Integer> known = new TreeSet<>();
            Scanner lines = new Scanner(System.in);
            while (lines.hasNextLine()) {
                String[] words = lines.nextLine().split(" ");
                int count = Integer.parseInt(words[1]);
                if (words[0].equals("send")) {
                    List<CompletableFuture<MessageId>> told = new ArrayList<>();
                    for (int n = 0; n < count; n++, sent++) told.add(producer.sendAsync("" + sent));
                    for (CompletableFuture<MessageId> each : told) each.get();
                    System.out.println("> sent " + count);
                } else {
                    TreeSet<Integer> values = new TreeSet<>();
                    while (values.size() < count) {
                        Message<String> message = consumer.receive();
                        int value = Integer.parseInt(message.getValue());
                        if (known.add(value)) values.add(value);
                        consumer.acknowledge(message);
                    }
                    System.out.println("> read " + values);
                }
            }
        }
    }
}
