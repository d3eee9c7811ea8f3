//! A one-sided GET allocates nothing at the client. The test has its own process, because all allocations of the
//! process are counted.

#[path = "../../../crates/adverb/tests/common/counting.rs"]
mod counting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb::cluster::{Broker, BrokerConfig, PeerId};
use adverb::verbs::SoftDevice;
use adverb_kv::client::{Client, ClientConfig, Outcome};
use adverb_kv::load::key_of;
use adverb_kv::members::{MESSAGE_SIZE, NamedAddr};
use adverb_kv::server::Server;
use adverb_kv::store::{Store, StoreConfig};

const KEYS: u64 = 200;
const WINDOW: usize = 32;

#[test]
fn one_sided_gets_allocate_nothing() {
    // One thread polls the server and the client, so that nothing else is counted.
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    let broker_config = BrokerConfig { slot_size: MESSAGE_SIZE, ..BrokerConfig::default() };
    let [mut server_broker, mut client_broker] =
        [1, 2].map(|epoch| Broker::builder(&domain).config(broker_config).epoch(epoch).create().unwrap());
    let peer = PeerId(0);
    let (server_offer, client_offer) =
        (server_broker.prepare(peer).unwrap(), client_broker.prepare(peer).unwrap());
    server_broker.establish(peer, &client_offer).unwrap();
    client_broker.establish(peer, &server_offer).unwrap();
    let store_config = StoreConfig { memory: 4 << 20, buckets: 256, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&store_config, 1, 0, 1, &[domain]).unwrap());
    for key in 0..KEYS {
        store.put(&key_of(key), &[key as u8; 300], Instant::now()).unwrap();
    }
    let mut server = Server::new(server_broker, Arc::clone(&store)).unwrap();
    let servers = [NamedAddr { name: "a".to_owned(), addr: String::new() }];
    let config = ClientConfig { window: WINDOW, cached_words: 64, ..ClientConfig::default() };
    let mut client = Client::new(client_broker, &servers, config).unwrap();
    while !client.is_available(0) {
        server.poll().unwrap();
        client.wait(Duration::ZERO).unwrap();
        client.poll(|_, _| {}).unwrap();
    }
    counting::assert_no_allocations("1000 GETs", 4, || {
        let (mut started, mut ended) = (0, 0);
        while ended < 1000 {
            while started < 1000 && client.outstanding_count() < WINDOW {
                client.get(&key_of(started % KEYS), started % KEYS).unwrap();
                started += 1;
            }
            server.poll().unwrap();
            let polled = client.poll(|key, result| {
                assert_eq!(result.unwrap(), Outcome::Value(&[key as u8; 300]));
                ended += 1;
            });
            polled.unwrap();
        }
    });
    assert!(client.stats().cached > 0 && client.stats().bucket_reads > 0);
}
