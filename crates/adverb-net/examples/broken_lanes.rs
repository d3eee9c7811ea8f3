//! Connections on one current-thread runtime, whose lanes break again and again, while messages are exchanged.
//!
//! `cargo xtask blocking-calls` runs this program under strace and counts the blocking system calls of the runtime's
//! thread between the program's two calls of `getppid`.
//!
//! ```text
//! broken_lanes [CONNECTIONS [ROUNDS]]
//! ```
//!
//! Both ends of every connection are tasks of the runtime. In each round all lanes break, half of them at the connector
//! and half at the listener, and each connection must then exchange messages again. Every message is checked.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adverb_net::{Connection, Connector, Listener, Options, internal};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The maximum time of a round, and of the reconnection of a lane.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The progress of one connection.
#[derive(Default)]
struct Progress {
    /// The number of messages that were answered.
    answered: Cell<u64>,
    is_stopped: Cell<bool>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |word| word.parse());
    let (count, rounds) = (number(64)?, number(3)?);
    LocalSet::new().run_until(run(count, rounds)).await
}

async fn run(count: usize, rounds: usize) -> Result<()> {
    let options = Options::new().reconnect(DEADLINE).timeout(DEADLINE);
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let mut pairs = Vec::new();
    for _ in 0..count {
        let connector = Connector::new().options(&options);
        let (connecting, accepting) = tokio::join!(connector.connect(address), listener.accept());
        pairs.push((Rc::new(connecting?), Rc::new(accepting?), Rc::new(Progress::default())));
    }
    let mut tasks = JoinSet::new();
    // The listener accepts the lanes of connections that reconnect.
    let accepting = tokio::task::spawn_local(async move { listener.accept().await.map(drop) });
    for (connector, acceptor, progress) in &pairs {
        let (connector, progress) = (Rc::clone(connector), Rc::clone(progress));
        tasks.spawn_local(async move {
            send_and_check(&connector, &progress).await.map_err(|error| error.to_string())
        });
        let acceptor = Rc::clone(acceptor);
        tasks.spawn_local(async move { reply(&acceptor).await.map_err(|error| error.to_string()) });
    }
    wait_for_progress(&pairs).await?;

    mark();
    let (begin, before) = (Instant::now(), answered_count(&pairs));
    for round in 0..rounds {
        for (index, (connector, acceptor, _)) in pairs.iter().enumerate() {
            internal::break_lane(if (index + round) % 2 == 0 { connector } else { acceptor })?;
        }
        wait_for_progress(&pairs).await?;
    }
    let (elapsed, messages) = (begin.elapsed(), answered_count(&pairs) - before);
    mark();
    println!(
        "{count} connections, {rounds} rounds of broken lanes, {messages} messages answered, {elapsed:.1?}"
    );

    pairs.iter().for_each(|(.., progress)| progress.is_stopped.set(true));
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    accepting.abort();
    Ok(())
}

/// Marks the start or the end of the rounds in a trace of system calls, with a call that nothing else makes.
fn mark() {
    let _ = std::os::unix::process::parent_id();
}

/// Sends numbered messages and checks the answers, until it is stopped.
async fn send_and_check(connection: &Connection, progress: &Progress) -> Result<()> {
    while !progress.is_stopped.get() {
        let number = progress.answered.get();
        connection.send(&number.to_le_bytes()).await?;
        let answer = connection.recv().await?.ok_or("the peer shut down early")?;
        if *answer != (number + 1).to_le_bytes() {
            return Err(format!("the answer to message {number} is {answer:?}").into());
        }
        progress.answered.set(number + 1);
        // The pause makes the connection idle, so that the runtime waits for events between messages.
        sleep(POLL_INTERVAL).await;
    }
    Ok(connection.shutdown().await?)
}

/// Answers each message with the next number, until the peer shuts down.
async fn reply(connection: &Connection) -> Result<()> {
    while let Some(message) = connection.recv().await? {
        let number = u64::from_le_bytes((*message).try_into()?);
        connection.send(&(number + 1).to_le_bytes()).await?;
    }
    Ok(())
}

fn answered_count(pairs: &[(Rc<Connection>, Rc<Connection>, Rc<Progress>)]) -> u64 {
    pairs.iter().map(|(.., progress)| progress.answered.get()).sum()
}

/// Waits until each connection has answered at least three more messages.
async fn wait_for_progress(pairs: &[(Rc<Connection>, Rc<Connection>, Rc<Progress>)]) -> Result<()> {
    let before: Vec<u64> = pairs.iter().map(|(.., progress)| progress.answered.get()).collect();
    let advance = async {
        for ((.., progress), before) in pairs.iter().zip(&before) {
            while progress.answered.get() < before + 3 {
                sleep(POLL_INTERVAL).await;
            }
        }
    };
    Ok(timeout(DEADLINE, advance).await.map_err(|_| "a connection made no progress")?)
}
