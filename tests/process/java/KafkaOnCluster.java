import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeSet;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A producer and a group's member that do as they are told, line by line: "send N", "read N". */
public class KafkaOnCluster {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        Map<String, Object> produces = Map.of("bootstrap.servers", servers, "delivery.timeout.ms", 120000);
        // Without a policy for resets, a position that is not valid any more ends the consumer.
        Map<String, Object> consumes = Map.of(
            "bootstrap.servers", servers, "group.id", "java", "auto.offset.reset", "none", "enable.auto.commit", false);
        try (var producer = new KafkaProducer<>(produces, new StringSerializer(), new StringSerializer());
                var consumer = new KafkaConsumer<>(consumes, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> parts) {}

                public void onPartitionsAssigned(Collection<TopicPartition> parts) {
                    consumer.seekToBeginning(parts);
                }
            });
            int sent = 0;
            Scanner lines = new Scanner(System.in);
            while (lines.hasNextLine()) {
                String[] words = lines.nextLine().split(" ");
                int count = Integer.parseInt(words[1]);
                if (words[0].equals("send")) {
                    List<Future<RecordMetadata>> told = new ArrayList<>();
                    for (int n = 0; n < count; n++, sent++)
                        told.add(producer.send(new ProducerRecord<>(topic, sent % partitions, null, "" + sent)));
                    for (Future<RecordMetadata> each : told) each.get();
                    System.out.println("> sent " + count);
                } else {
                    TreeSet<Integer> epochs = new TreeSet<>();
                    List<Integer> values = new ArrayList<>();
                    while (values.size() < count)
                        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                            values.add(Integer.parseInt(record.value()));
                            epochs.add(record.leaderEpoch().orElse(-1));
                        }
                    consumer.commitSync();
                    System.out.println("> read " + new TreeSet<>(values) + " of epochs " + epochs);
                }
            }
        }
    }
}
