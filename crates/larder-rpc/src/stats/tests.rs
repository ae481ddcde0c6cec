//! The error of the histogram, and its percentiles.

use super::*;

#[test]
fn buckets_are_in_order_and_narrow() {
    let mut last = 0;
    for us in (0..5000).chain((13..36).map(|log2| (1 << log2) + 1)) {
        let middle = middle_us(bucket(us));
        assert!(middle.abs_diff(us) * 16 <= us, "{us} is counted as {middle}");
        assert!(bucket(us) >= last);
        last = bucket(us);
    }
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
}

#[test]
fn percentiles_are_those_of_the_values() {
    let histogram = Histogram::default();
    assert_eq!(histogram.snapshot(), Latency::default());
    (1..=1000).for_each(|us| histogram.record(Duration::from_micros(us)));
    let latency = histogram.snapshot();
    assert_eq!((latency.count, latency.max_us, latency.sum_us), (1000, 1000, 500_500));
    for (got, wanted) in [(latency.p50_us, 500), (latency.p90_us, 900), (latency.p99_us, 990)] {
        assert!(got.abs_diff(wanted) * 16 <= wanted, "{got} for {wanted}");
    }
}

#[test]
fn accounts_of_two_clients_are_added_by_name() {
    let procedure = |number, name, calls| {
        let latency =
            Latency { count: calls, sum_us: calls * 10, p50_us: calls, ..Latency::default() };
        ProcedureSnapshot { number, name, calls, latency, ..ProcedureSnapshot::default() }
    };
    let one = |procedures: &[ProcedureSnapshot]| Snapshot {
        procedures: procedures.to_vec(),
        connections: vec![ConnectionSnapshot::default()],
    };
    let first = one(&[procedure(1, "READ", 3), procedure(2, "LOOKUP", 1)]);
    let both = first.with(one(&[procedure(7, "READ", 5), procedure(2, "WRITE", 2)]));
    let calls: Vec<_> = both.procedures.iter().map(|one| (one.name, one.calls)).collect();
    assert_eq!(calls, [("READ", 8), ("LOOKUP", 1), ("WRITE", 2)]);
    let latency = both.procedures[0].latency;
    assert_eq!((latency.count, latency.sum_us, latency.p50_us), (8, 80, 5));
    assert_eq!(both.connections.len(), 2);
}
