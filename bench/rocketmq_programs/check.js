// RocketMQ's Node client says `ok` for every step that a broker does right. Arguments: endpoint, a name for topics.
const { LitePushConsumerImpl, OffsetOption, Producer, SimpleConsumer } = require("rocketmq-client-nodejs");

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

  if (process.env.WEIR_ADMIN) await lite(producer);
  process.exit(0);
}

async function lite(producer) {
  const parent = `${topic}-l`;
  await said("PUT", `/admin/v2/persistent/public/default/${parent}`, "");
  await said("PUT", `/admin/weir/v1/message-types/persistent/public/default/${parent}`, JSON.stringify({ types: ["lite"] }));
  for (const body of ["0", "1", "2"]) {
    await producer.send({ topic: parent, liteTopic: "chat", body: Buffer.from(body) });
  }
  let found;
  const first = new Promise((resolve) => { found = resolve; });
  const consumer = new LitePushConsumerImpl({
    consumerGroup: "g", bindTopic: parent, endpoints, namespace: "", requestTimeout: 30000,
    messageListener: { consume: async (message) => { found(message); return 0; } },
  });
  await consumer.startup();
  await consumer.subscribeLite("chat", OffsetOption.ofTailN(1));
  const got = await first;
  check(got.body.toString() === "2" && !got.corrupted, "began at the last message of a lite topic");
}

async function said(method, path, body) {
  const answer = await fetch(process.env.WEIR_ADMIN + path, { method, body, headers: { "content-type": "application/json" } });
  if (!answer.ok) throw new Error(`${path}: ${await answer.text()}`);
}

main().catch((failure) => {
  console.error(failure);
  process.exit(1);
});
