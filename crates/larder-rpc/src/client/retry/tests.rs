//! Each rule by the numbers.

use super::*;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn the_timeout_follows_the_round_trip_and_doubles_on_loss() {
    let mut round_trip = RoundTrip::new(ms(1100));
    assert_eq!(round_trip.timeout(), ms(1100));
    (0..50).for_each(|_| round_trip.sample(ms(200)));
    // Twice the slowest.
    assert!((ms(400)..ms(430)).contains(&round_trip.timeout()), "{round_trip:?}");

    round_trip.timed_out(ms(0), ms(300));
    round_trip.timed_out(ms(300), ms(700));
    assert!((ms(1600)..ms(1700)).contains(&round_trip.timeout()), "{round_trip:?}");
    (1..100).for_each(|at| round_trip.timed_out(ms(at * 1000), ms(at * 1000)));
    assert_eq!(round_trip.timeout(), RETRANSMIT_MAX);

    (0..500).for_each(|_| round_trip.sample(ms(1)));
    assert_eq!(round_trip.timeout(), RETRANSMIT_MIN);
}

#[test]
fn one_slow_reply_is_remembered_for_a_while() {
    let mut round_trip = RoundTrip::new(ms(1100));
    (0..100).for_each(|_| round_trip.sample(ms(1)));
    round_trip.sample(ms(400));
    (0..10).for_each(|_| round_trip.sample(ms(1)));
    assert!(round_trip.timeout() > ms(600), "{round_trip:?}");
    (0..300).for_each(|_| round_trip.sample(ms(1)));
    assert_eq!(round_trip.timeout(), RETRANSMIT_MIN);
}

/// A full buffer drops many at once: that is one loss.
#[test]
fn calls_that_are_lost_together_halve_and_double_once() {
    let (mut window, mut round_trip) = (Window::congestion(64), RoundTrip::new(ms(100)));
    (0..10_000).for_each(|_| window.replied());
    for call in 0..64 {
        // Sent within 64 ms, and found missing within 64 ms.
        window.timed_out(ms(call), ms(200 + call));
        round_trip.timed_out(ms(call), ms(200 + call));
    }
    assert_eq!((window.calls(), round_trip.timeout()), (32, ms(200)));
    // Sent again after that, and lost again.
    window.timed_out(ms(250), ms(900));
    round_trip.timed_out(ms(250), ms(900));
    assert_eq!((window.calls(), round_trip.timeout()), (16, ms(400)));
}

#[test]
fn the_window_grows_by_one_for_each_windowful_and_halves_on_loss() {
    let mut window = Window::congestion(16);
    assert_eq!(window.calls(), 2);
    (0..6).for_each(|_| window.replied());
    assert_eq!(window.calls(), 4);
    (0..1000).for_each(|_| window.replied());
    assert_eq!(window.calls(), 16);
    window.timed_out(ms(0), ms(1));
    assert_eq!(window.calls(), 8);
    (1..11).for_each(|at| window.timed_out(ms(at), ms(at)));
    assert_eq!(window.calls(), 1);
    (0..1000).for_each(|_| window.replied());
    window.limit(5);
    assert_eq!(window.calls(), 5);
    (0..1000).for_each(|_| window.replied());
    assert_eq!(window.calls(), 5);
    window.limit(0);
    assert_eq!(window.calls(), 1);

    let mut fixed = Window::fixed(64);
    fixed.timed_out(ms(0), ms(1));
    fixed.replied();
    assert_eq!(fixed.calls(), 64);
}
