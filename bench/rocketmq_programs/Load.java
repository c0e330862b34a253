// Loads a broker with RocketMQ's Java client, and prints what it took as JSON. Arguments: endpoint, what, topic, count, size.
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Load {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final int AT_ONCE = 64;
    static final int THREADS = 8;

    public static void main(String[] arguments) throws Exception {
        String what = arguments[1], topic = arguments[2];
        int count = Integer.parseInt(arguments[3]), size = Integer.parseInt(arguments[4]);
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .setRequestTimeout(Duration.ofSeconds(30)).build();
        switch (what) {
            case "send": case "fifo": case "delay": send(configuration, what, topic, count, size); break;
            case "transaction": transactions(configuration, topic, count, size); break;
            case "receive": receive(configuration, topic, arguments[5], count); break;
            default: latency(configuration, topic, arguments[5], count, size);
        }
        System.exit(0);
    }

    static Producer producer(ClientConfiguration configuration, String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(view -> TransactionResolution.COMMIT).build();
    }

    static Message message(String what, String topic, int number, byte[] body) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body);
        if (what.equals("fifo")) {
            builder.setMessageGroup("group-" + number % 64);
        } else if (what.equals("delay")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + 3_600_000);
        }
        return builder.build();
    }

    static void send(ClientConfiguration configuration, String what, String topic, int count, int size) throws Exception {
        Producer producer = producer(configuration, topic);
        byte[] body = new byte[size];
        burst(producer, what, topic, Math.min(2000, count), body);
        long began = System.nanoTime();
        burst(producer, what, topic, count, body);
        print(count, began);
    }

    static void burst(Producer producer, String what, String topic, int count, byte[] body) throws Exception {
        Semaphore window = new Semaphore(AT_ONCE);
        AtomicInteger failed = new AtomicInteger();
        for (int number = 0; number < count; number++) {
            window.acquire();
            producer.sendAsync(message(what, topic, number, body)).whenComplete((receipt, failure) -> {
                if (failure != null) {
                    failed.incrementAndGet();
                }
                window.release();
            });
        }
        window.acquire(AT_ONCE);
        if (failed.get() > 0) {
            System.err.println(failed.get() + " were not sent");
            System.exit(1);
        }
    }

    static void transactions(ClientConfiguration configuration, String topic, int count, int size) throws Exception {
        Producer producer = producer(configuration, topic);
        byte[] body = new byte[size];
        threads(count / 10, number -> transaction(producer, topic, body));
        long began = System.nanoTime();
        threads(count, number -> transaction(producer, topic, body));
        print(count, began);
    }

    static void transaction(Producer producer, String topic, byte[] body) throws Exception {
        Transaction transaction = producer.beginTransaction();
        producer.send(message("send", topic, 0, body), transaction);
        transaction.commit();
    }

    static void receive(ClientConfiguration configuration, String topic, String group, int count) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
        AtomicInteger left = new AtomicInteger(count);
        long began = System.nanoTime();
        threads(THREADS, number -> {
            while (left.get() > 0) {
                List<CompletableFuture<Void>> acks = new ArrayList<>();
                for (MessageView view : consumer.receive(32, Duration.ofSeconds(60))) {
                    acks.add(consumer.ackAsync(view));
                    left.decrementAndGet();
                }
                for (CompletableFuture<Void> ack : acks) {
                    ack.get();
                }
            }
        });
        print(count, began);
    }

    static void latency(ClientConfiguration configuration, String topic, String group, int count, int size) throws Exception {
        long[] taken = new long[count];
        AtomicInteger got = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(1);
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                String began = view.getProperties().get("began");
                int at = began == null ? count : got.getAndIncrement();
                if (at < count) {
                    taken[at] = System.nanoTime() - Long.parseLong(began);
                    if (at == count - 1) {
                        all.countDown();
                    }
                }
                return ConsumeResult.SUCCESS;
            }).build();
        Producer producer = producer(configuration, topic);
        byte[] body = new byte[size];
        Thread.sleep(6000);  // the consumer asks for its assignment
        for (int number = 0; number < count; number++) {
            String now = Long.toString(System.nanoTime());
            producer.sendAsync(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).addProperty("began", now).build());
            Thread.sleep(5);
        }
        all.await();
        Arrays.sort(taken);
        System.out.printf("{\"p50_ms\": %.2f, \"p99_ms\": %.2f}%n", taken[count / 2] / 1e6, taken[count * 99 / 100] / 1e6);
    }

    interface Work {
        void run(int number) throws Exception;
    }

    static void threads(int count, Work work) throws Exception {
        AtomicInteger next = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int each = 0; each < THREADS; each++) {
            Thread thread = new Thread(() -> {
                int number;
                while ((number = next.getAndIncrement()) < count) {
                    try {
                        work.run(number);
                    } catch (Exception failure) {
                        failure.printStackTrace();
                        System.exit(1);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    static void print(int count, long began) {
        System.out.printf("{\"per_s\": %.0f}%n", count / ((System.nanoTime() - began) / 1e9));
    }
}
