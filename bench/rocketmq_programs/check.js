// RocketMQ's Node client says `ok` for every step that a broker does right. Arguments: endpoint, a name for topics.
const { Producer, SimpleConsumer } = require("rocketmq-client-nodejs");

const [endpoints, name] = process.argv.slice(2);
const topic = `node-${name}`;

function check(right, step) {
  console.log(`${right ? "ok" : "wrong"} ${step}`);
  if (!right) process.exit(1);
}

async function one(consumer) {
  for (;;) {
    const found = await consumer.receive(1, 30000);
    if (found.length) return found[0];
  }
}

async function main() {
  const producer = new Producer({ endpoints, namespace: "", requestTimeout: 30000, maxAttempts: 3 });
  await producer.startup();
  const sent = await producer.send({
    topic, tag: "a", keys: ["k"], body: Buffer.from("hello"), properties: new Map([["p", "v"]]),
  });
  const consumer = new SimpleConsumer({
    consumerGroup: "g", endpoints, namespace: "", requestTimeout: 30000,
    subscriptions: new Map().set(topic, "*"), awaitDuration: 20000,
  });
  await consumer.startup();
  const found = await one(consumer);
  check(found.body.toString() === "hello" && found.messageId === sent.messageId, "received");
  check(found.tag === "a" && found.keys.includes("k") && found.properties.get("p") === "v", "described");
  await consumer.ack(found);
  check(true, "acknowledged");
  process.exit(0);
}

main().catch((failure) => {
  console.error(failure);
  process.exit(1);
});
