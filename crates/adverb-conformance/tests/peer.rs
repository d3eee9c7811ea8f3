//! Two ends of one software NIC run all cases with each other.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use adverb::verbs::{Device, PathMtu};
use adverb_conformance::peer::{self, Case, CaseOutcome, Port, Session, Settings};

#[test]
fn every_case_passes_between_two_ends_of_one_device() {
    let device = Device::open("soft").unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = Port::new(device.clone());
    let server = thread::spawn(move || peer::serve(serving, listener.accept().unwrap().0));
    let mut settings = Settings::default();
    settings.mtu = Some(PathMtu::Mtu1024);
    let mut session =
        Session::new(Port::new(device), TcpStream::connect(address).unwrap(), settings).unwrap();
    for case in Case::all() {
        let result = session.run(case).unwrap();
        assert_eq!(result.outcome, CaseOutcome::Passed, "{case}");
        assert!(result.counts.sent > 0 && result.counts.arrived == result.counts.sent, "{case}: {result}");
    }
    session.end().unwrap();
    server.join().unwrap().unwrap();
}

#[test]
fn a_peer_with_another_protocol_is_rejected() {
    use std::io::Write;

    let device = Device::open("soft").unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    for said in ["{\"Hello\":99}\n", "\"Bye\"\n", "GET / HTTP/1.1\n", ""] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let served = peer::serve(Port::new(device.clone()), listener.accept().unwrap().0);
        assert!(served.is_err(), "{said:?}");
    }
}
