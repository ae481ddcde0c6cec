//! Network namespaces. They need root, and each test prints that where it is skipped.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_bench::link::measure::{self, FarSide};
use larder_bench::link::netns::Netns;
use larder_bench::link::proxy::{Options, Proxy};
use larder_bench::link::{Shape, netns};

use super::peers::{MEGABIT, TRIES, connect, echo, server_at};

/// A namespace, or none if we may not make one.
fn netns(rate_bits_per_s: Option<u64>) -> Option<Netns> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: a network namespace needs root");
        return None;
    }
    Some(Netns::create(rate_bits_per_s).unwrap())
}

/// What is measured, if that is not the rate of the link less some 4.5 % of headers.
fn wrong_rate(netns: &Netns) -> Option<f64> {
    let link = measure::netns(netns).unwrap();
    assert_eq!(link.asked, netns.asked().to_string());
    let right = match netns.asked().rate_bits_per_s {
        Some(rate) => 0.8 * rate as f64..1.05 * rate as f64,
        None => 100e6..f64::INFINITY,
    };
    (!right.contains(&link.rate_bits_per_s)).then_some(link.rate_bits_per_s)
}

fn text(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn servers_inside_of_several_are_reached_from_outside() {
    let (Some(one), Some(two), Some(three)) = (netns(None), netns(None), netns(None)) else {
        return;
    };
    for netns in [&one, &two, &three] {
        // The same port in each.
        let listener = netns.enter(|| TcpListener::bind((netns.inside(), 4711)).unwrap()).unwrap();
        let mut stream = connect(server_at(listener, echo));
        assert_eq!(stream.local_addr().unwrap().ip(), netns.outside());
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn the_rate_is_held_changed_and_removed() {
    let Some(mut netns) = netns(Some(10 * MEGABIT)) else {
        return;
    };
    for rate in [Some(10 * MEGABIT), Some(40 * MEGABIT), None, None, Some(5 * MEGABIT)] {
        netns.shape(rate).unwrap();
        assert_eq!(netns.asked().rate_bits_per_s, rate);
        let measured: Vec<f64> = (0..TRIES).map_while(|_| wrong_rate(&netns)).collect();
        assert!(measured.len() < TRIES, "{measured:?} at {rate:?}");
    }
}

#[test]
fn the_rate_changes_under_a_connection() {
    let Some(mut netns) = netns(None) else {
        return;
    };
    let far_side = FarSide::start_in(&netns).unwrap();
    let mut stream = connect(far_side.address());
    let mut bytes = vec![0; 1 << 20];
    for (rate, min, max) in [
        (None, 0.0, 0.5),
        // Headers included it takes 0.88 s, less a burst of 5 ms.
        (Some(10 * MEGABIT), 0.87, 2.5),
        (None, 0.0, 0.5),
    ] {
        netns.shape(rate).unwrap();
        let in_time = (0..TRIES).any(|_| {
            let begin = Instant::now();
            // Asks for as many bytes as 2 to this power.
            stream.write_all(&[20]).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            let seconds = begin.elapsed().as_secs_f64();
            assert!(seconds > min, "{seconds:.3} s at {rate:?}");
            seconds < max
        });
        assert!(in_time, "more than {max} s at {rate:?}");
        let (sent, dropped) = counted(&netns);
        // Each is a piece that TCP was refused and soon sends again; they are many if pieces are
        // large.
        assert!(dropped <= sent / 2, "{dropped} dropped, {sent} sent at {rate:?}");
    }
}

/// Frames that left from inside, and those that the bucket has dropped.
fn counted(netns: &Netns) -> (u64, u64) {
    let told = text(netns.command("tc").args(["-s", "-j", "qdisc", "show", "dev", "eth0"]));
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let count = |name: &str| told[0][name].as_u64().unwrap();
    (count("packets"), count("drops"))
}

#[test]
fn what_goes_in_is_shaped_too() {
    let Some(netns) = netns(Some(20 * MEGABIT)) else {
        return;
    };
    // Now the far side is outside, and its bytes go in.
    let listener = TcpListener::bind((netns.outside(), 0)).unwrap();
    let address = server_at(listener, |mut stream| drop(stream.write_all(&vec![7; 1_000_000])));
    let rate = || {
        let elapsed = netns.enter(|| {
            let begin = Instant::now();
            let mut stream = connect(address);
            stream.read_to_end(&mut Vec::new()).unwrap();
            begin.elapsed()
        });
        1e6 * 8.0 / elapsed.unwrap().as_secs_f64()
    };
    // A burst of 5 ms in 0.4 s is less than what headers take.
    let rates = std::iter::repeat_with(rate).inspect(|rate| assert!(*rate < 20e6, "{rate}"));
    assert!(rates.take(TRIES).any(|rate| rate > 8e6), "slower than asked");
}

#[test]
fn programs_run_inside() {
    let Some(netns) = netns(None) else {
        return;
    };
    let name = "/proc/self/ns/net";
    let ours = std::fs::read_link(name).unwrap().to_string_lossy().into_owned();
    let by_command = text(netns.command("readlink").arg(name));
    assert_ne!(by_command.trim(), ours);
    let mut readlink = Command::new("readlink");
    let child = netns.spawn(readlink.arg(name).stdout(Stdio::piped())).unwrap();
    let spawned = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(spawned, by_command);
    // The thread that went in was not ours.
    assert_eq!(std::fs::read_link(name).unwrap().to_string_lossy(), ours);
    let error = netns.spawn(&mut Command::new("larder-no-such-program")).unwrap_err();
    assert!(error.to_string().contains("larder-no-such-program"), "{error}");
}

#[test]
fn nothing_is_left_when_it_is_dropped() {
    let Some(netns) = netns(Some(MEGABIT)) else {
        return;
    };
    let path = format!("/run/netns/{}", netns.name());
    let device = |netns: &Netns| {
        let ours = format!("{}/32", netns.outside());
        text(Command::new("ip").args(["-4", "-o", "address", "show", "to", &ours]))
    };
    assert!(Path::new(&path).exists());
    assert!(device(&netns).contains(" lb"), "{}", device(&netns));
    let ours = netns.outside();
    // Even if a process is still inside.
    let mut child = netns.spawn(Command::new("sleep").arg("600")).unwrap();
    drop(netns);
    assert!(!Path::new(&path).exists());
    assert!(!text(Command::new("ip").args(["-4", "-o", "address"])).contains(&format!("{ours}/")));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_proxy_before_it_adds_its_delay() {
    let Some(netns) = netns(Some(20 * MEGABIT)) else {
        return;
    };
    let far_side = FarSide::start_in(&netns).unwrap();
    let shape = Shape { delay: Duration::from_millis(15), ..Shape::default() };
    let proxy = Proxy::start(&Options::to(far_side.address(), shape)).unwrap();
    let right = (0..TRIES).any(|_| {
        let link = measure::connection(proxy.address(), "netns+veth+tbf+proxy", "both").unwrap();
        assert!(link.round_trip_us > 30e3, "{link:?}");
        println!("{link:?}");
        link.round_trip_us < 150e3 && link.rate_bits_per_s > 8e6 && link.rate_bits_per_s < 22e6
    });
    assert!(right, "measured as another link each time");
}

#[test]
fn a_rate_of_zero_and_a_user_without_rights_are_refused() {
    if let Some(mut netns) = netns(None) {
        assert!(netns.shape(Some(0)).is_err());
        assert_eq!(netns.asked(), Shape::default());
    }
    // Rights are of a thread, as far as the kernel is concerned.
    let error = std::thread::spawn(|| {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).ok();
        netns::Netns::create(None).unwrap_err().to_string()
    });
    let error = error.join().unwrap();
    assert!(error.contains("root") && error.contains("proxy"), "{error}");
}
