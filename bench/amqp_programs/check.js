// amqplib against a broker: node check.js HOST PORT NAME. Says `ok` for every step.
const amqp = require('amqplib');

const COUNT = 100;
const [host, port, suffix] = process.argv.slice(2);
const name = `node-${suffix}`;

function check(right, what) {
  if (!right) {
    console.log(`WRONG ${what}`);
    process.exit(1);
  }
  console.log(`ok ${what}`);
}

async function publishAndConsume(connection) {
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange(name, 'topic', { durable: true });
  await channel.assertQueue(name, { durable: true });
  await channel.bindQueue(name, name, 'a.#');
  const returned = new Promise((resolve) => channel.once('return', (message) => resolve(message.fields.replyCode)));
  for (let number = 0; number < COUNT; number++) {
    channel.publish(name, 'a.b', Buffer.from(`${number}`), { persistent: true, headers: { number } });
  }
  channel.publish(name, 'none', Buffer.from('lost'), { mandatory: true });
  await channel.waitForConfirms();
  check((await channel.checkQueue(name)).messageCount === COUNT, 'confirmed');
  check((await returned) === 312, 'returned');

  await channel.prefetch(10);
  const bodies = [];
  let refused = false;
  await new Promise((resolve) => {
    channel.consume(name, (message) => {
      if (message === null) return; // the queue was deleted
      if (!refused) {
        refused = true;
        channel.reject(message, true);
        return;
      }
      bodies.push(message.content.toString() + (message.fields.redelivered ? '*' : ''));
      channel.ack(message);
      if (bodies.length === COUNT) resolve();
    });
  });
  check(bodies.includes('0*'), 'redelivered');
  await channel.deleteQueue(name);
  await channel.deleteExchange(name);
  await channel.close();
}

async function errors(connection) {
  const channel = await connection.createChannel();
  channel.on('error', () => {});
  let code = 0;
  await channel.checkQueue(`${name}-none`).catch((error) => { code = error.code; });
  check(code === 404, 'missing');
}

async function cancelled(connection) {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  const told = new Promise((resolve) => channel.consume(queue, resolve));
  await (await connection.createChannel()).deleteQueue(queue);
  check((await told) === null, 'cancelled');
}

async function replies(connection) {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  await channel.consume(queue, (message) => {
    channel.sendToQueue(message.properties.replyTo, Buffer.from(`re: ${message.content}`), {
      correlationId: message.properties.correlationId,
    });
  }, { noAck: true });
  const asking = await connection.createChannel();
  const answer = new Promise((resolve) => {
    asking.consume('amq.rabbitmq.reply-to', resolve, { noAck: true }).then(() => {
      asking.sendToQueue(queue, Buffer.from('question'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' });
    });
  });
  const message = await answer;
  check(message.content.toString() === 're: question' && message.properties.correlationId === '7', 'replied');
}

// Publishes of two channels wait in the client's buffers when it closes: its close overtakes them.
async function closing() {
  for (const channelFirst of [false, true]) {
    const connection = await amqp.connect(`amqp://guest:guest@${host}:${port}`);
    let broken = null;
    connection.on('error', (error) => { broken = error; });
    const channels = [await connection.createChannel(), await connection.createChannel()];
    const { queue } = await channels[0].assertQueue('', { exclusive: true });
    for (let number = 0; number < 2000; number++) channels[number % 2].sendToQueue(queue, Buffer.alloc(20000));
    if (channelFirst) await channels[0].close();
    await connection.close();
    check(broken === null, channelFirst ? 'closed after its channel' : 'closed');
  }
}

(async () => {
  const connection = await amqp.connect(`amqp://guest:guest@${host}:${port}`);
  await publishAndConsume(connection);
  await errors(connection);
  await cancelled(connection);
  await replies(connection);
  await connection.close();
  await closing();
})().catch((error) => {
  console.log(`WRONG ${error.stack}`);
  process.exit(1);
});
