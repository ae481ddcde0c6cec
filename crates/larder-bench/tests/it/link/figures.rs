//! How exact the links are on this machine: a table, for citing.

use std::time::Duration;

use larder_bench::link::netns::Netns;
use larder_bench::link::{Shape, measure};
use larder_bench::record::Link;

use super::peers::MEGABIT;

#[test]
#[ignore = "it measures and asserts nothing; run it alone, in release, with --nocapture"]
fn figures() {
    println!("{:18}{:28}{:>14}{:>14}", "kind", "asked", "Mbit/s", "us");
    print(&measure::loopback().unwrap());
    print(&measure::proxy(Shape::default()).unwrap());
    for mbit in [1, 10, 100, 1000] {
        print(&measure::proxy(Shape::of_rate(mbit * MEGABIT)).unwrap());
    }
    for (mbit, delay_us) in [(1000, 100), (1000, 500), (100, 5000), (100, 50_000), (10, 20_000)] {
        let delay = Duration::from_micros(delay_us);
        print(&measure::proxy(Shape { delay, ..Shape::of_rate(mbit * MEGABIT) }).unwrap());
    }
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut netns = Netns::create(None).unwrap();
    print(&measure::netns(&netns).unwrap());
    for mbit in [1, 10, 100, 1000] {
        netns.shape(Some(mbit * MEGABIT)).unwrap();
        print(&measure::netns(&netns).unwrap());
    }
}

fn print(link: &Link) {
    let mbit = link.rate_bits_per_s / 1e6;
    println!("{:18}{:28}{mbit:14.3}{:14.1}", link.kind, link.asked, link.round_trip_us);
}
