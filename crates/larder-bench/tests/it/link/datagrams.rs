//! What arrives over UDP, and what does not.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use larder_bench::link::Shape;
use larder_bench::link::proxy::{Options, Proxy, Traffic};

use super::peers::{
    MEGABIT, PATIENCE, TRIES, both_at_one_port, datagram_echo, datagrams_to, noise, proxy,
    server_at,
};

/// Datagrams that the kernel surely holds while no process receives them.
const HELD: usize = 16;

/// Sends numbered datagrams up a link and answers which of them arrived.
fn arrived(count: u32, loss: f64, seed: u64) -> (Vec<u32>, Traffic) {
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sink.set_read_timeout(Some(PATIENCE)).unwrap();
    let shape = Shape { loss, ..Shape::default() };
    let options = Options { seed, ..Options::to(sink.local_addr().unwrap(), shape) };
    let proxy = Proxy::start(&options).unwrap();
    let client = datagrams_to(proxy.address());
    let mut numbers = Vec::new();
    let begin = Instant::now();
    for number in 0..count {
        client.send(&number.to_be_bytes()).unwrap();
        if (number + 1) % HELD as u32 == 0 || number + 1 == count {
            while proxy.traffic().up.datagrams <= u64::from(number) {
                assert!(begin.elapsed() < PATIENCE, "{:?}", proxy.traffic());
                std::thread::yield_now();
            }
            let up = proxy.traffic().up;
            while (numbers.len() as u64) < up.datagrams - up.datagrams_lost {
                let mut bytes = [0; 4];
                assert_eq!(sink.recv(&mut bytes).unwrap(), 4);
                numbers.push(u32::from_be_bytes(bytes));
            }
        }
    }
    (numbers, proxy.traffic())
}

#[test]
fn no_loss_loses_nothing_and_full_loss_everything() {
    let (numbers, traffic) = arrived(2000, 0.0, 1);
    assert_eq!(numbers, (0..2000).collect::<Vec<_>>());
    assert_eq!((traffic.up.datagrams, traffic.up.datagrams_lost), (2000, 0));
    assert_eq!(traffic.up.bytes, 8000);
    let (numbers, traffic) = arrived(200, 1.0, 1);
    assert_eq!((numbers.len(), traffic.up.datagrams_lost), (0, 200));
}

#[test]
fn as_many_are_lost_as_asked_and_the_same_ones_each_time() {
    let (numbers, traffic) = arrived(4000, 0.1, 7);
    let lost = 4000 - numbers.len();
    // Four standard deviations; with this seed it is always the same number anyway.
    assert!((324..=476).contains(&lost), "{lost}");
    assert_eq!(traffic.up.datagrams_lost, lost as u64);
    assert_eq!(arrived(4000, 0.1, 7).0, numbers);
    assert_ne!(arrived(4000, 0.1, 8).0, numbers);
}

#[test]
fn replies_get_lost_too() {
    let shape = Shape { loss: 0.3, ..Shape::default() };
    let proxy = proxy(datagram_echo(), shape);
    let client = datagrams_to(proxy.address());
    client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let (mut byte, mut replies) = ([0], 0);
    let begin = Instant::now();
    while proxy.traffic().down.datagrams < 100 {
        client.send(&[7]).unwrap();
        replies += u32::from(client.recv(&mut byte).is_ok());
        assert!(begin.elapsed() < PATIENCE, "{:?}", proxy.traffic());
    }
    // They may be many more than 100 by now: what waits for a proxy that is late comes at once.
    let down = proxy.traffic().down;
    let share = down.datagrams_lost as f64 / down.datagrams as f64;
    assert!((0.1..0.6).contains(&share), "{down:?}, {replies} came");
}

#[test]
fn each_client_gets_its_own_replies() {
    let proxy = proxy(datagram_echo(), Shape::default());
    let clients: Vec<UdpSocket> = (0..8).map(|_| datagrams_to(proxy.address())).collect();
    for round in 0..10 {
        for (number, client) in clients.iter().enumerate() {
            client.send(&[round, number as u8]).unwrap();
        }
        for (number, client) in clients.iter().enumerate() {
            let mut reply = [0; 3];
            assert_eq!(client.recv(&mut reply).unwrap(), 2);
            assert_eq!(reply, [round, number as u8, 0]);
        }
    }
}

#[test]
fn datagrams_stay_whole_whatever_their_size() {
    let proxy = proxy(datagram_echo(), Shape::of_rate(100 * MEGABIT));
    let client = datagrams_to(proxy.address());
    let mut reply = vec![0; 64 << 10];
    for bytes in [0, 1, 1448, 1449, 8 << 10, 32 << 10, 65_507] {
        let sent = noise(bytes as u64, bytes);
        client.send(&sent).unwrap();
        let received = client.recv(&mut reply).unwrap();
        assert!(reply[..received] == sent, "{received} of {bytes} bytes");
    }
}

#[test]
fn many_in_flight_take_one_round_trip() {
    let delay = Duration::from_millis(50);
    let proxy = proxy(datagram_echo(), Shape { delay, ..Shape::default() });
    let client = datagrams_to(proxy.address());
    let begin = Instant::now();
    for number in 0..64 {
        client.send(&[number]).unwrap();
    }
    for number in 0..64 {
        let mut byte = [0];
        client.recv(&mut byte).unwrap();
        assert_eq!(byte, [number]);
        assert!(begin.elapsed() >= 2 * delay, "number {number} after {:?}", begin.elapsed());
    }
    // What they would take one after the other.
    assert!(begin.elapsed() < 64 * 2 * delay, "{:?}", begin.elapsed());
}

/// Which part of the rate a connection and datagrams get together, with 400,000 bytes each.
fn share_of(rate: u64) -> f64 {
    let (listener, sink) = both_at_one_port();
    let tcp = server_at(listener, |mut stream| {
        use std::io::Read;
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    sink.set_read_timeout(Some(PATIENCE)).unwrap();
    let proxy = proxy(tcp, Shape::of_rate(rate));
    let begin = Instant::now();
    let stream = super::peers::connect(proxy.address());
    let client = datagrams_to(proxy.address());
    let (bulk, datagram) = (vec![7; 400_000], [7; 1000]);
    std::thread::scope(|scope| {
        scope.spawn(|| super::peers::exchange(&stream, &bulk));
        for _ in 0..400 / HELD {
            for _ in 0..HELD {
                client.send(&datagram).unwrap();
            }
            for _ in 0..HELD {
                sink.recv(&mut [0; 1000]).unwrap();
            }
        }
    });
    let total = proxy.traffic().up.bytes;
    assert_eq!(total, 800_000);
    total as f64 * 8.0 / begin.elapsed().as_secs_f64() / rate as f64
}

#[test]
fn datagrams_and_connections_share_the_rate() {
    let shares = std::iter::repeat_with(|| share_of(10 * MEGABIT));
    let shares = shares.inspect(|share| assert!(*share < 1.01, "{share:.3}"));
    assert!(shares.take(TRIES).any(|share| share > 0.4), "less than the rate");
}
