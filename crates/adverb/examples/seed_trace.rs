//! Five work requests, the packets they become and their completions: a SEND, an RDMA WRITE, an RDMA READ, a compare and
//! swap, and a WRITE with a wrong remote key. The server posts a receive and waits for a notification.
//!
//! ```text
//! $ cargo run --example seed_trace         # prints the trace
//! $ cargo run --example seed_trace -- out  # also writes trace.html, trace.pcapng, trace.jsonl and trace.json to out
//! ```
//!
//! The devices are two software NICs on a switch in this process, so the example runs on any machine.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;

use adverb::Report;
use adverb::verbs::recording::ActiveRecording;
use adverb::verbs::{Access, ArmFor, Device, RecvRequest, SendRequest, SoftDevice, Switch, Transport};
use adverb_trace::Trace;

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Report> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let switch = Switch::default();
    let client = SoftDevice::on_switch(&switch, "192.168.1.10".parse()?).open()?;
    let server = SoftDevice::on_switch(&switch, "192.168.1.20".parse()?).open()?;

    // Both ends are recorded, with the first 64 bytes of each payload.
    let recordings =
        [client.recording().payload_limit(64).start()?, server.recording().payload_limit(64).start()?];
    run_requests(&client, &server)?;
    let trace = Trace::new(recordings.map(ActiveRecording::stop));

    trace.write_text(&mut std::io::stdout().lock())?;
    if let Some(directory) = directory {
        std::fs::create_dir_all(&directory)?;
        let file = |name: &str| Ok::<_, std::io::Error>(BufWriter::new(File::create(directory.join(name))?));
        trace.write_html(&mut file("trace.html")?)?;
        trace.write_pcapng(&mut file("trace.pcapng")?)?;
        trace.write_json_lines(&mut file("trace.jsonl")?)?;
        trace.write_perfetto(&mut file("trace.json")?)?;
        eprintln!("wrote trace.html, trace.pcapng, trace.jsonl and trace.json to {}", directory.display());
    }
    Ok(())
}

/// Connects a queue pair of each device, and executes the requests.
fn run_requests(client: &Device, server: &Device) -> Result<(), Report> {
    let queue_pair = |device: &Device| {
        let completions = device.completion_queue(32).events().create()?;
        let domain = device.create_protection_domain()?;
        domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(16, 16).create()
    };
    let (client, server) = (queue_pair(client)?, queue_pair(server)?);
    client.connect(&server.endpoint())?;
    server.connect(&client.endpoint())?;
    let domain = client.protection_domain();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let table = server.protection_domain().allocate_region(16384, access)?;
    let remote = table.remote();

    // RECEIVE: the server posts a buffer, and requests a notification of the next solicited message.
    let receiving =
        server.post_recv(RecvRequest::new(server.protection_domain().allocate_buffer(1024)?).tag(5))?;
    server.recv_completion_queue().arm(ArmFor::Solicited)?;

    let completion = |id| client.send_completion_queue().wait(id, TIMEOUT);
    let filled = |len: usize| -> adverb::Result<_> {
        let mut buffer = domain.allocate_buffer(len)?;
        buffer
            .iter_mut()
            .zip(b"RDMA without hardware. ".iter().cycle())
            .for_each(|(byte, text)| *byte = *text);
        Ok(buffer)
    };
    // SEND
    let send = client.post_send(SendRequest::send(filled(64)?).solicited().tag(1))?;
    completion(send)?.result()?;
    // The notification: the server sleeps until the message has arrived, then polls its completion.
    if !server.recv_completion_queue().wait_event(TIMEOUT)? {
        return Err("the server got no notification".into());
    }
    server.recv_completion_queue().wait(receiving, TIMEOUT)?.result()?;
    // RDMA WRITE
    let write = client.post_send(SendRequest::write(filled(4096)?, remote.at(0)).tag(2))?;
    completion(write)?.result()?;
    // RDMA READ
    let read = client.post_send(SendRequest::read(domain.allocate_buffer(1024)?, remote.at(4096)).tag(3))?;
    completion(read)?.result()?;
    // ATOMIC
    let swap = SendRequest::compare_swap(domain.allocate_buffer(8)?, remote.at(8192), 0, 1).tag(4);
    completion(client.post_send(swap)?)?.result()?;
    // Error: the server's memory has another key. The queue pair moves to the error state.
    let mut wrong = remote.at(0);
    wrong.rkey = wrong.rkey.wrapping_add(1);
    let rejected = client.post_send(SendRequest::write(filled(64)?, wrong).tag(6))?;
    let status = completion(rejected)?.result().err().ok_or("the write with the wrong key succeeded")?;
    eprintln!("the write with the wrong key failed, as it should: {status}");
    Ok(())
}
