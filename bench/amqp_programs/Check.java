// RabbitMQ's Java client against a broker: java -cp ... Check.java HOST PORT NAME. Says `ok` for every step.
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Check {
  static final int COUNT = 100;

  static void check(boolean right, String what) {
    if (!right) {
      System.out.println("WRONG " + what);
      System.exit(1);
    }
    System.out.println("ok " + what);
  }

  public static void main(String[] arguments) throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setHost(arguments[0]);
    factory.setPort(Integer.parseInt(arguments[1]));
    String name = "java-" + arguments[2];
    try (Connection connection = factory.newConnection()) {
      publishAndConsume(connection, name);
      errors(connection, name);
      cancelled(connection, name);
      replies(connection, name);
    }
  }

  static void publishAndConsume(Connection connection, String name) throws Exception {
    Channel channel = connection.createChannel();
    channel.exchangeDeclare(name, "topic", true);
    channel.queueDeclare(name, true, false, false, Map.of("x-max-priority", 4));
    channel.queueBind(name, name, "a.#");
    channel.confirmSelect();
    BlockingQueue<Integer> returned = new LinkedBlockingQueue<>();
    channel.addReturnListener(back -> returned.add(back.getReplyCode()));
    for (int number = 0; number < COUNT; number++) {
      channel.basicPublish(name, "a.b", MessageProperties.PERSISTENT_TEXT_PLAIN, ("" + number).getBytes());
    }
    channel.basicPublish(name, "none", true, null, "lost".getBytes());
    channel.waitForConfirmsOrDie(60_000);
    check(channel.messageCount(name) == COUNT, "confirmed");
    check(returned.poll(60, TimeUnit.SECONDS) == 312, "returned");

    channel.basicQos(10);
    List<String> bodies = new ArrayList<>();
    CountDownLatch done = new CountDownLatch(COUNT);
    channel.basicConsume(name, false, new DefaultConsumer(channel) {
      private boolean refused;

      @Override
      public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
          throws IOException {
        if (!refused) {
          refused = true;
          channel.basicReject(envelope.getDeliveryTag(), true);
          return;
        }
        bodies.add(new String(body) + (envelope.isRedeliver() ? "*" : ""));
        channel.basicAck(envelope.getDeliveryTag(), false);
        done.countDown();
      }
    });
    check(done.await(60, TimeUnit.SECONDS), "delivered");
    check(bodies.contains("0*") && bodies.size() == COUNT, "redelivered");
    channel.queueDelete(name);
    channel.exchangeDelete(name);
    channel.close();
  }

  static void errors(Connection connection, String name) throws Exception {
    try {
      connection.createChannel().queueDeclarePassive(name + "-none");
      check(false, "missing");
    } catch (IOException error) {
      AMQP.Channel.Close close =
          (AMQP.Channel.Close) ((ShutdownSignalException) error.getCause()).getReason();
      check(close.getReplyCode() == 404, "missing");
    }
    Channel channel = connection.createChannel();
    String made = channel.queueDeclare().getQueue();
    channel.txSelect();
    channel.basicPublish("", made, null, "one".getBytes());
    channel.txCommit();
    GetResponse one = channel.basicGet(made, true);
    check(new String(one.getBody()).equals("one") && channel.basicGet(made, true) == null, "transaction");
    channel.close();
  }

  static void cancelled(Connection connection, String name) throws Exception {
    Channel channel = connection.createChannel();
    String made = channel.queueDeclare().getQueue();
    CountDownLatch told = new CountDownLatch(1);
    channel.basicConsume(made, (tag, message) -> {}, tag -> told.countDown());
    connection.createChannel().queueDelete(made);
    check(told.await(60, TimeUnit.SECONDS), "cancelled");
  }

  static void replies(Connection connection, String name) throws Exception {
    Channel channel = connection.createChannel();
    String asked = channel.queueDeclare().getQueue();
    RpcServer server = new RpcServer(channel, asked) {
      @Override
      public byte[] handleCall(byte[] body, AMQP.BasicProperties properties) {
        return ("re: " + new String(body)).getBytes();
      }
    };
    Thread serving = new Thread(() -> {
      try {
        server.mainloop();
      } catch (IOException | RuntimeException ended) {
        // the connection is closed
      }
    });
    serving.setDaemon(true);
    serving.start();
    RpcClient client = new RpcClient(
        new RpcClientParams().channel(connection.createChannel()).exchange("").routingKey(asked).timeout(60_000));
    check(new String(client.primitiveCall("question".getBytes())).equals("re: question"), "replied");
  }
}
