//! The command `kv`: servers and clients of a sharded in-memory cache. README.md has examples.

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use adverb::verbs::ConnectOptions;
use adverb_kv::bench::{self, BenchConfig};
use adverb_kv::check::{self, CheckConfig, CheckReport, Link};
use adverb_kv::client::{Client, ClientConfig, ClientStats, GetMethod, KvError};
use adverb_kv::item::Verify;
use adverb_kv::load::{self, LoadConfig, LoadReport, Mix};
use adverb_kv::members::{Members, NamedAddr};
use adverb_kv::server::Server;
use adverb_kv::store::{Store, StoreConfig};
use adverb_kv::tcp::{self, TcpClient};
use anyhow::{Context, Result, ensure};
use clap::Parser;

/// The time in which a client must connect to the servers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A sharded in-memory cache whose clients read the servers' memory.
#[derive(Parser, Debug)]
#[command(name = "kv")]
enum Args {
    /// Run a server.
    Serve(ServeArgs),
    /// Run the same server over TCP, for comparison.
    ServeTcp {
        /// The address to listen at.
        addr: SocketAddr,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Print the value of a key.
    Get {
        /// The key.
        key: String,
        #[command(flatten)]
        member: ClientArgs,
    },
    /// Store a value.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: String,
        #[command(flatten)]
        member: ClientArgs,
    },
    /// Delete a key.
    Delete {
        /// The key.
        key: String,
        #[command(flatten)]
        member: ClientArgs,
    },
    /// Run a mix of YCSB, and print the rate and the latencies.
    Load(LoadArgs),
    /// Read items that a writer replaces at full speed, and check every value.
    Check(CheckArgs),
    /// Compare GETs by READ, by RPC, over TCP, and of Redis.
    Bench(BenchConfig),
}

#[derive(clap::Args, Debug)]
struct MemberArgs {
    /// The servers, as NAME=IP:PORT,… in the same order everywhere.
    #[arg(long, value_delimiter = ',', default_value = "a=127.0.0.1:7571,b=127.0.0.1:7572")]
    servers: Vec<NamedAddr>,
    /// The clients, as NAME=IP:PORT,… in the same order everywhere.
    #[arg(long, value_delimiter = ',', default_value = "client=127.0.0.1:7573")]
    clients: Vec<NamedAddr>,
    /// The number of threads of each member, the same for all members.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The maximum number of READs that a client's NIC has outstanding at a server, the same for all members. The
    /// software NIC allows 128; an RDMA NIC may allow only 16.
    #[arg(long, default_value_t = 16)]
    outstanding_reads: u8,
}

#[derive(clap::Args, Debug)]
struct ClientArgs {
    /// The name of this client.
    #[arg(long, default_value = "client")]
    name: String,
    #[command(flatten)]
    members: MemberArgs,
}

#[derive(clap::Args, Debug)]
struct StoreArgs {
    /// The memory for items, in MiB.
    #[arg(long, default_value_t = 64)]
    memory: usize,
    /// The number of shards.
    #[arg(long, default_value_t = 2)]
    shards: usize,
    /// The number of buckets of each shard. A bucket has up to eight items.
    #[arg(long, default_value_t = 1 << 14)]
    buckets: usize,
    /// The time before the memory of a replaced item is reused, in ms.
    #[arg(long, default_value_t = 50)]
    grace: u64,
}

#[derive(clap::Args, Debug)]
struct ServeArgs {
    /// The name of this server.
    name: String,
    #[command(flatten)]
    members: MemberArgs,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(clap::Args, Debug)]
struct LoadArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The mix: A has 50 % GETs, B 95 %, C 100 %. The others are PUTs.
    #[arg(long, value_enum, default_value_t = Mix::B)]
    mix: Mix,
    /// The way in which values are read.
    #[arg(long = "get", value_enum, default_value_t = GetArg::OneSided)]
    method: GetArg,
    /// Don't cache the locations of items.
    #[arg(long)]
    no_cache: bool,
    /// Use this server over TCP instead of the cluster.
    #[arg(long)]
    tcp: Option<SocketAddr>,
    /// The number of keys.
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// The length of values in bytes.
    #[arg(long, default_value_t = 100)]
    value_len: usize,
    /// The number of operations of each thread.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// The maximum number of outstanding operations of each thread.
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Don't store the keys first.
    #[arg(long)]
    no_fill: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum GetArg {
    OneSided,
    Rpc,
}

#[derive(clap::Args, Debug)]
struct CheckArgs {
    /// The number of GETs.
    #[arg(long, default_value_t = 1_000_000)]
    reads: u64,
    /// The number of keys.
    #[arg(long, default_value_t = 1024)]
    keys: u64,
    /// The length of values in bytes.
    #[arg(long, default_value_t = 512)]
    value_len: usize,
    /// The network between the client and the server.
    #[arg(long, value_enum, default_value_t = Link::Udp)]
    link: Link,
    /// Don't compare the checksums, to show that wrong values are accepted then.
    #[arg(long)]
    no_checksum: bool,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            if let Some(hint) = error.downcast_ref::<KvError>().and_then(KvError::hint) {
                eprintln!("  hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    match args {
        Args::Serve(args) => serve(args)?,
        Args::ServeTcp { addr, store } => {
            let store = Arc::new(tcp::new_store(&store.config())?);
            let listener = TcpListener::bind(addr).with_context(|| format!("listening at {addr} failed"))?;
            println!("listening at {}", listener.local_addr()?);
            tcp::serve(&listener, &store)?;
        }
        Args::Get { key, member } => match member.connect(&key)?.get_blocking(key.as_bytes())? {
            Some(value) => println!("{}", String::from_utf8_lossy(&value)),
            None => {
                println!("the key does not exist");
                return Ok(ExitCode::FAILURE);
            }
        },
        Args::Put { key, value, member } => {
            member.connect(&key)?.put_blocking(key.as_bytes(), value.as_bytes())?;
        }
        Args::Delete { key, member } => member.connect(&key)?.delete_blocking(key.as_bytes())?,
        Args::Load(args) => run_load(&args)?,
        Args::Check(args) => return run_check(&args),
        Args::Bench(config) => bench::run(&config)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl StoreArgs {
    fn config(&self) -> StoreConfig {
        StoreConfig {
            memory: self.memory << 20,
            shards: self.shards,
            buckets: self.buckets,
            grace: Duration::from_millis(self.grace),
        }
    }
}

impl MemberArgs {
    fn members(&self) -> Members {
        Members {
            servers: self.servers.clone(),
            clients: self.clients.clone(),
            connect_options: ConnectOptions::new().max_rd_atomic(self.outstanding_reads),
        }
    }
}

impl ClientArgs {
    /// Connects to the server of a key, with one thread.
    fn connect(&self, key: &str) -> Result<Client> {
        ensure!(self.members.threads == 1, "this command has one thread");
        let members = self.members.members();
        // The broker keeps its sessions after this function drops the cluster.
        let cluster = members.join(&self.name, 1)?;
        let config = ClientConfig { window: 1, ..ClientConfig::default() };
        let mut client = Client::new(cluster.take_broker(0)?, &members.servers, config)?;
        // Without a connection, the request fails with a better error, so `false` is ignored here.
        client.wait_for_server(client.server_of(key.as_bytes()), CONNECT_TIMEOUT)?;
        Ok(client)
    }
}

fn serve(ServeArgs { name, members, store }: ServeArgs) -> Result<()> {
    let threads = members.threads;
    let members = members.members();
    let index = members.servers.iter().position(|server| server.name == name);
    let index = index.with_context(|| format!("{name:?} is not one of the servers"))?;
    let addr = &members.servers[index].addr;
    let listener = TcpListener::bind(addr).with_context(|| format!("listening at {addr} failed"))?;
    let addr = listener.local_addr()?;
    let cluster = members.join_with(&name, threads, listener)?;
    let member = cluster.this_member().0.into();
    let servers = members.servers.len();
    let store = Store::new(&store.config(), servers, member, cluster.epoch(), cluster.protection_domains())?;
    let store = Arc::new(store);
    println!("{name} is listening at {addr}");
    std::thread::scope(|scope| {
        let serve = |thread| -> Result<()> {
            let mut server = Server::new(cluster.take_broker(thread)?, Arc::clone(&store))?;
            Ok(server.run(&AtomicBool::new(false))?)
        };
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || serve(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a server thread does not panic"))
    })
}

fn run_load(args: &LoadArgs) -> Result<()> {
    let LoadArgs { client, mix, keys, value_len, operations, window, .. } = args;
    let config = |seed| LoadConfig {
        mix: *mix,
        keys: *keys,
        value_len: *value_len,
        operations: *operations,
        window: *window,
        seed,
    };
    let report = if let Some(addr) = args.tcp {
        let connection = TcpClient::connect(addr).with_context(|| format!("connecting to {addr} failed"))?;
        load_over(connection, &config(1), !args.no_fill)?.0
    } else {
        let client_config = ClientConfig {
            window: *window,
            method: match args.method {
                GetArg::OneSided => GetMethod::OneSided,
                GetArg::Rpc => GetMethod::Rpc,
            },
            cached_words: if args.no_cache { 0 } else { 4 * *keys as usize },
            ..ClientConfig::default()
        };
        let members = client.members.members();
        let cluster = members.join(&client.name, client.members.threads)?;
        let run_thread = |thread| -> Result<(LoadReport, ClientStats)> {
            let mut client = Client::new(cluster.take_broker(thread)?, &members.servers, client_config)?;
            let is_available = client.wait_available(CONNECT_TIMEOUT)?;
            ensure!(is_available, "the client did not connect to all servers: start them");
            let fill = thread == 0 && !args.no_fill;
            let (report, client) = load_over(client, &config(thread as u64), fill)?;
            Ok((report, *client.stats()))
        };
        std::thread::scope(|scope| -> Result<LoadReport> {
            let threads = 0..client.members.threads;
            let threads: Vec<_> = threads.map(|thread| scope.spawn(move || run_thread(thread))).collect();
            let mut total: Option<LoadReport> = None;
            for thread in threads {
                let (report, stats) = thread.join().expect("a client thread does not panic")?;
                print_stats(&stats);
                match &mut total {
                    Some(total) => total.merge(&report),
                    None => total = Some(report),
                }
            }
            total.context("the load needs a thread")
        })?
    };
    println!("succeeded: {}", report.succeeded);
    println!("missing: {}", report.missing);
    println!("failed: {}", report.failed);
    println!("rate: {:.0} operations/s", report.rate());
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("maximum", 1.0)] {
        println!("{name}: {:.1} µs", report.latency_us(quantile));
    }
    Ok(())
}

fn load_over<C: load::Connection>(
    mut connection: C,
    config: &LoadConfig,
    fill: bool,
) -> Result<(LoadReport, C)> {
    if fill {
        load::fill(&mut connection, config)?;
    }
    let report = load::run(&mut connection, config)?;
    Ok((report, connection))
}

fn run_check(args: &CheckArgs) -> Result<ExitCode> {
    let verify = if args.no_checksum { Verify::LengthsOnly } else { Verify::Checksum };
    let CheckArgs { reads, keys, value_len, link, .. } = *args;
    let progress = Some(Duration::from_secs(10));
    let report = check::run(&CheckConfig { reads, keys, value_len, verify, link, progress })?;
    let CheckReport { accepted, wrong, stale, missing, puts, elapsed, stats } = report;
    let rate = |count: u64| count as f64 / elapsed.as_secs_f64();
    println!("{accepted} values read in {:.1} s ({:.0}/s)", elapsed.as_secs_f64(), rate(accepted));
    println!("{puts} PUTs at the same time ({:.0}/s), memory reused at once", rate(puts));
    print_stats(&stats);
    println!("{} torn reads detected", stats.torn);
    println!(
        "{wrong} wrong values accepted, {stale} older than a PUT that had returned, {missing} keys not found"
    );
    if verify == Verify::LengthsOnly {
        println!("the checksums were not compared");
        return Ok(ExitCode::SUCCESS);
    }
    let is_good = wrong == 0 && stale == 0 && missing == 0 && stats.torn > 0;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_stats(stats: &ClientStats) {
    let ClientStats { bucket_reads, item_reads, cached, torn, retired, reused, same_tag, fallbacks } = stats;
    println!(
        "READs: {bucket_reads} of buckets, {item_reads} of items, {cached} of them with a cached location"
    );
    println!(
        "not accepted: {torn} torn, {retired} replaced, {reused} reused for another key, {same_tag} with the same tag; \
         {fallbacks} GETs continued by RPC"
    );
}
