//! What arrives over connections, and how fast.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use larder_bench::link::{Shape, measure};

use super::peers::{MEGABIT, TRIES, connect, count, echo, exchange, noise, proxy, server};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Up,
    Down,
    /// As many up as down.
    Both,
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn bytes_arrive_complete_and_in_order_over_many_connections() {
    let server = server(echo);
    for (rate, delay, connections, bytes) in [
        (None, ms(0), 32, 300_000),
        (None, ms(5), 8, 1 << 20),
        (Some(500 * MEGABIT), ms(0), 32, 200_000),
        (Some(50 * MEGABIT), ms(3), 16, 100_000),
        (Some(MEGABIT), ms(1), 4, 10_000),
        (Some(MEGABIT), ms(0), 1, 0),
    ] {
        let proxy = proxy(server, Shape { rate_bits_per_s: rate, delay, loss: 0.5 });
        std::thread::scope(|scope| {
            for seed in 0..connections {
                let address = proxy.address();
                scope.spawn(move || {
                    let sent = noise(seed, bytes);
                    let received = exchange(&connect(address), &sent);
                    assert!(received == sent, "connection {seed} at {rate:?}");
                });
            }
        });
        let (traffic, total) = (proxy.traffic(), connections * bytes as u64);
        assert_eq!((traffic.up.bytes, traffic.down.bytes), (total, total));
    }
}

/// How long `bytes` in total take over some connections at once, and each of them.
fn timed(shape: Shape, connections: u64, way: Way, bytes: usize) -> (Duration, Vec<Duration>) {
    let each = bytes / connections as usize;
    let server = server(move |mut stream| match way {
        Way::Up => count(stream),
        Way::Down => stream.write_all(&vec![7; each]).unwrap(),
        Way::Both => echo(stream),
    });
    let proxy = proxy(server, shape);
    let ended = Mutex::new(Vec::new());
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let stream = connect(proxy.address());
                let sent = if way == Way::Down { 0 } else { each };
                let received = exchange(&stream, &vec![7; sent]);
                ended.lock().unwrap().push(begin.elapsed());
                match way {
                    Way::Up => assert_eq!(received, (each as u64).to_be_bytes()),
                    Way::Down | Way::Both => assert_eq!(received.len(), each),
                }
            });
        }
    });
    (begin.elapsed(), ended.into_inner().unwrap())
}

#[test]
fn the_rate_is_that_of_the_link_however_many_connections_share_it() {
    for (mbit, connections, way, bytes) in [
        (5, 1, Way::Down, 300_000),
        (100, 1, Way::Down, 6_000_000),
        (100, 1, Way::Up, 6_000_000),
        (20, 10, Way::Down, 1_200_000),
        (20, 10, Way::Up, 1_200_000),
        // Full duplex: each direction has the whole rate.
        (50, 4, Way::Both, 3_000_000),
    ] {
        let rate = mbit * MEGABIT;
        let shares = std::iter::repeat_with(|| {
            let (elapsed, _) = timed(Shape::of_rate(rate), connections, way, bytes);
            bytes as f64 * 8.0 / elapsed.as_secs_f64() / rate as f64
        });
        // A burst of 4 ms in half a second is 0.8 %.
        let shares = shares.inspect(|share| assert!(*share < 1.01, "{share:.3} of {mbit} Mbit/s"));
        let held = shares.take(TRIES).any(|share| share > 0.75);
        assert!(held, "less than {mbit} Mbit/s for {connections} connections, {way:?}");
    }
}

#[test]
fn connections_get_equal_shares() {
    let equal = (0..TRIES).any(|_| {
        let (all, each) = timed(Shape::of_rate(20 * MEGABIT), 5, Way::Down, 1_000_000);
        // Were one served after the other, the first would be ready after a fifth of the time.
        each.iter().all(|one| *one > all.mul_f64(0.7))
    });
    assert!(equal, "one is ready long before the last");
}

#[test]
fn delay_is_added_once_in_each_direction() {
    let proxy = proxy(server(echo), Shape { delay: ms(40), ..Shape::default() });
    let begin = Instant::now();
    let mut stream = connect(proxy.address());
    let mut times = Vec::new();
    for _ in 0..15 {
        let asked = Instant::now();
        stream.write_all(&[1]).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        times.push(asked.elapsed());
        // The first also waits for the handshake.
        assert!(times.len() > 1 || begin.elapsed() >= ms(160), "{times:?}");
    }
    assert!(times.iter().all(|time| *time >= ms(80)), "{times:?}");
    // The quickest: the others may have waited for the machine.
    assert!(times.iter().min() < Some(&ms(115)), "{times:?}");
}

#[test]
fn what_is_in_flight_is_delayed_together() {
    // 2 MB leave in 0.16 s. Were each turn of the wire to wait for the one before to arrive, the 80
    // turns would take 8 s more.
    let shape = Shape { delay: ms(100), ..Shape::of_rate(100 * MEGABIT) };
    for way in [Way::Up, Way::Down] {
        let (elapsed, _) = timed(shape, 1, way, 2_000_000);
        assert!(elapsed >= ms(356) && elapsed < ms(8000), "{way:?}: {elapsed:?}");
    }
}

#[test]
fn a_receiver_that_stalls_stalls_the_sender() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let server = server(move |stream| {
        wait.lock().unwrap().recv().unwrap();
        count(stream);
    });
    let proxy = proxy(server, Shape::default());
    let mut stream = connect(proxy.address());
    stream.set_write_timeout(Some(ms(500))).unwrap();
    let (piece, mut sent_bytes) = (vec![7; 1 << 20], 0_u64);
    let full = loop {
        match stream.write(&piece) {
            Ok(bytes) => sent_bytes += bytes as u64,
            Err(error) => break error.kind(),
        }
        // The buffers of four sockets and the line.
        assert!(sent_bytes < 64 << 20, "the proxy takes everything");
    };
    assert_eq!(full, ErrorKind::WouldBlock);
    go.send(()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut counted = [0; 8];
    stream.read_exact(&mut counted).unwrap();
    assert_eq!(u64::from_be_bytes(counted), sent_bytes);
}

#[test]
fn the_shape_changes_while_the_link_lives() {
    // 4 MB take 32 s at the first rate.
    let server = server(|mut stream| drop(stream.write_all(&vec![7; 4_000_000])));
    let proxy = proxy(server, Shape::of_rate(MEGABIT));
    let begin = Instant::now();
    let mut stream = connect(proxy.address());
    stream.read_exact(&mut [0; 25_000]).unwrap();
    assert!(begin.elapsed() >= ms(195), "{:?}", begin.elapsed());
    assert!(proxy.reshape(Shape::of_rate(0)).is_err());
    proxy.reshape(Shape::default()).unwrap();
    stream.read_exact(&mut vec![0; 3_975_000]).unwrap();
    assert!(begin.elapsed() < ms(30_000), "{:?}", begin.elapsed());
}

#[test]
fn a_proxy_measures_as_it_was_asked_to_be() {
    let shape = Shape { delay: ms(10), ..Shape::of_rate(20 * MEGABIT) };
    let right = (0..TRIES).any(|_| {
        let link = measure::proxy(shape).unwrap();
        let asked = (link.kind.as_str(), link.asked.as_str());
        assert_eq!(asked, ("proxy", "20 Mbit/s, 10 ms each way"));
        assert!(link.round_trip_us >= 20e3, "{link:?}");
        println!("{link:?}");
        // Whoever reads late at the beginning of the time sees more.
        link.rate_bits_per_s < 22e6 && link.rate_bits_per_s > 8e6 && link.round_trip_us < 100e3
    });
    assert!(right, "measured as another link each time");
}
