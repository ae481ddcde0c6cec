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
    assert!((ms(200)..ms(230)).contains(&round_trip.timeout()), "{round_trip:?}");

    round_trip.timed_out();
    round_trip.timed_out();
    assert!((ms(800)..ms(920)).contains(&round_trip.timeout()), "{round_trip:?}");
    (0..100).for_each(|_| round_trip.timed_out());
    assert_eq!(round_trip.timeout(), RETRANSMIT_MAX);

    (0..50).for_each(|_| round_trip.sample(ms(1)));
    assert_eq!(round_trip.timeout(), RETRANSMIT_MIN);
}

#[test]
fn the_window_grows_by_one_for_each_windowful_and_halves_on_loss() {
    let mut window = Window::congestion(16);
    assert_eq!(window.calls(), 2);
    (0..6).for_each(|_| window.replied());
    assert_eq!(window.calls(), 4);
    (0..1000).for_each(|_| window.replied());
    assert_eq!(window.calls(), 16);
    window.timed_out();
    assert_eq!(window.calls(), 8);
    (0..10).for_each(|_| window.timed_out());
    assert_eq!(window.calls(), 1);

    let mut fixed = Window::fixed(64);
    fixed.timed_out();
    fixed.replied();
    assert_eq!(fixed.calls(), 64);
}

#[test]
fn pauses_double_up_to_the_limit() {
    let mut backoff = Backoff::new(ms(100), ms(350));
    assert_eq!([(); 4].map(|()| backoff.pause()), [ms(100), ms(200), ms(350), ms(350)]);
}
