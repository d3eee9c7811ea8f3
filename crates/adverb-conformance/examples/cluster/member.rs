//! A member: a process that joins the cluster, and exchanges data with all other members.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb::cluster::{Arena, BrokerConfig, Cluster, Member, Rpc, RpcConfig};
use adverb::verbs::{Access, ConnectOptions};
use anyhow::{Context, Result, anyhow};

use crate::calls::CallThread;
use crate::lines::{Line, Settings};
use crate::messages::MessageThread;
use crate::worker::{Control, Published, Worker};

/// The size of a message slot.
pub(crate) const SLOT_SIZE: u32 = 512;

/// Runs until the standard input ends. The commands `finish` and `report` are lines of the standard input.
pub(crate) fn run(settings: Settings) -> Result<()> {
    let settings = Arc::new(settings);
    // The rings are small, so that senders often have no credit.
    let config =
        BrokerConfig { send_slots: 32, recv_slots: 32, slot_size: SLOT_SIZE, ..BrokerConfig::default() };
    let options = ConnectOptions::new().ack_timeout(settings.ack_timeout);
    let mut builder = Cluster::builder().threads(settings.threads.into()).config(config);
    for (index, addr) in settings.addrs.iter().enumerate() {
        builder = builder.member(Member::new(index.to_string(), addr.to_string()));
    }
    let cluster = builder.connect_options(options).join(&settings.member.to_string())?;
    let arena = Arena::builder().member(settings.member.into()).epoch(cluster.epoch());
    let arena = arena.create(cluster.protection_domains())?;
    arena.allocate_segment(8 << 20, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let device = cluster.protection_domains()[0].device().name().to_owned();
    Line::Started { epoch: cluster.epoch(), device }.print();

    let control = Arc::new(Control::default());
    let published: Vec<_> = (0..settings.threads).map(|_| Arc::<Published>::default()).collect();
    let mut threads = Vec::new();
    for (thread, published) in (0..settings.threads).zip(&published) {
        let mut broker = cluster.take_broker(thread.into())?;
        broker.publish(&arena)?;
        let (settings, arena) = (Arc::clone(&settings), arena.clone());
        let (control, published) = (Arc::clone(&control), Arc::clone(published));
        let worker = Worker::new(settings, thread, cluster.epoch(), arena, control, published)?;
        let run = move || {
            if thread % 2 == 0 {
                MessageThread::new(worker).run(broker)
            } else {
                CallThread::new(worker).run(Rpc::new(broker, RpcConfig::default())?)
            }
        };
        threads.push(std::thread::Builder::new().name(format!("thread-{thread}")).spawn(run)?);
    }
    spawn_reader(Arc::clone(&control));

    let mut printed_at = Instant::now();
    let mut is_reported = false;
    while !control.is_stopping.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(20));
        for thread in threads.extract_if(.., |thread| thread.is_finished()) {
            join(thread)?;
        }
        if printed_at.elapsed() >= Duration::from_millis(500) {
            printed_at = Instant::now();
            let progress = |published: &Arc<Published>| published.progress.lock().expect("no panic").clone();
            Line::Progress { threads: published.iter().map(progress).collect() }.print();
        }
        if control.is_reporting.load(Ordering::Acquire) && !is_reported {
            let reports = published.iter().map(|one| one.report.lock().expect("no panic").clone());
            if let Some(reports) = reports.collect::<Option<Vec<_>>>() {
                is_reported = true;
                Line::Report { sessions: reports.into_iter().flatten().collect() }.print();
            }
        }
    }
    threads.into_iter().try_for_each(join)
}

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    let result = thread.join().map_err(|_| anyhow!("{name} panicked"))?;
    result.context(name)
}

/// Starts the thread that reads the commands of the coordinator.
fn spawn_reader(control: Arc<Control>) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            match line.as_str() {
                "finish" => control.is_finishing.store(true, Ordering::Release),
                "report" => control.is_reporting.store(true, Ordering::Release),
                _ => {}
            }
        }
        control.is_stopping.store(true, Ordering::Release);
    });
}
