//! Measures the rate and delay of a TCP connection over a link: for the record of a run, beside the
//! requested ones.
//!
//! The other end is a [`FarSide`], on the far side of the link. Its protocol is one byte, `n`,
//! which it answers with 2 to the power `n` bytes. The rate is of payload that comes to us, the way
//! of reads. Bytes from before the link is steady are left out: the first fifth of the time, in
//! which a bucket empties and TCP grows its window.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Shape;
use super::background::Background;
use super::netns::Netns;
use super::proxy::{Options, Proxy};
use crate::record::Link;

/// Round trips that are timed, if they are quick.
const ROUND_TRIPS: usize = 31;
/// How long either measurement takes, at most, after its first byte has come.
const TIME_MAX: Duration = Duration::from_secs(1);
/// The size of the answer for measuring the rate: 2 to this power bytes, 16 MiB. More than one
/// second is needed below 134 Mbit/s.
const TRANSFER_EXPONENT: u8 = 24;
/// The largest that a far side sends.
const EXPONENT_MAX: u8 = 30;

/// How long nothing may come before it is an error.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that are read or written at once.
const PIECE_BYTES: usize = 64 << 10;

/// The other end of measurements. Dropped, it closes everything.
#[derive(Debug)]
pub struct FarSide {
    address: SocketAddr,
    _background: Background,
}

impl FarSide {
    /// On 127.0.0.1.
    ///
    /// # Errors
    /// If there are no more ports, threads or file descriptors.
    pub fn start() -> Result<FarSide> {
        FarSide::of(listen(Ipv4Addr::LOCALHOST.into()))
    }

    /// Inside a network namespace.
    ///
    /// # Errors
    /// The same, or if the namespace cannot be entered.
    pub fn start_in(netns: &Netns) -> Result<FarSide> {
        FarSide::of(netns.enter(|| listen(netns.inside().into()))?)
    }

    fn of(listener: std::io::Result<TcpListener>) -> Result<FarSide> {
        let listener = listener.context("cannot listen")?;
        let address = listener.local_addr()?;
        let started = Background::start("link-far-side", || {
            Ok(((), serve(tokio::net::TcpListener::from_std(listener)?)))
        });
        let ((), background) = started.context("cannot start the far side of a link")?;
        Ok(FarSide { address, _background: background })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Measures over a connection to `far_side`, which may be the address of a proxy before one. Takes
/// up to some seconds. `kind` and `asked` are for the record.
///
/// # Errors
/// If it cannot connect, or nothing comes for long.
pub fn connection(far_side: SocketAddr, kind: &str, asked: &str) -> Result<Link> {
    let measured = || -> Result<Link> {
        let mut stream = TcpStream::connect_timeout(&far_side, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let round_trip = round_trip(&mut stream)?;
        let rate_bits_per_s = rate(&mut stream)?;
        let round_trip_us = round_trip.as_secs_f64() * 1e6;
        let (kind, asked) = (kind.to_owned(), asked.to_owned());
        Ok(Link { kind, asked, rate_bits_per_s, round_trip_us })
    };
    measured().with_context(|| format!("cannot measure the link to {far_side}"))
}

/// Measures loopback without a link.
///
/// # Errors
/// See [`connection`].
pub fn loopback() -> Result<Link> {
    let far_side = FarSide::start()?;
    connection(far_side.address(), "loopback", &Shape::default().to_string())
}

/// Measures a proxy of this shape: one of its own, without other users.
///
/// # Errors
/// If the shape is invalid; else see [`connection`].
pub fn proxy(shape: Shape) -> Result<Link> {
    let far_side = FarSide::start()?;
    let proxy = Proxy::start(&Options::to(far_side.address(), shape))?;
    connection(proxy.address(), "proxy", &shape.to_string())
}

/// Measures the link of a network namespace, from outside, together with its other users.
///
/// # Errors
/// See [`connection`].
pub fn netns(netns: &Netns) -> Result<Link> {
    let far_side = FarSide::start_in(netns)?;
    connection(far_side.address(), "netns+veth+tbf", &netns.asked().to_string())
}

/// Median time until the answer to one byte, which is one byte.
fn round_trip(stream: &mut TcpStream) -> Result<Duration> {
    let mut byte = [0];
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < ROUND_TRIPS && (times.is_empty() || begin.elapsed() < TIME_MAX) {
        let asked = Instant::now();
        stream.write_all(&[0])?;
        stream.read_exact(&mut byte)?;
        times.push(asked.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Rate of a large answer, in bits per second. The rest of it is still coming if it takes too long.
fn rate(stream: &mut TcpStream) -> Result<f64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut total_bytes = 0_u64;
    let mut come = Vec::new();
    stream.write_all(&[TRANSFER_EXPONENT])?;
    let mut first = None;
    while total_bytes < 1 << TRANSFER_EXPONENT {
        let bytes = stream.read(&mut piece)?;
        ensure!(bytes > 0, "the far side has closed the connection");
        let after = first.get_or_insert_with(Instant::now).elapsed();
        total_bytes += bytes as u64;
        come.push((after, total_bytes));
        if after >= TIME_MAX {
            break;
        }
    }
    Ok(settled_rate(&come))
}

/// Bits per second, from when how many bytes had come in total: over all but the first fifth of the
/// time. Not zero if anything came.
fn settled_rate(come: &[(Duration, u64)]) -> f64 {
    let (end, total_bytes) = come.last().copied().unwrap_or_default();
    let settled = come.iter().find(|(after, _)| *after >= end / 5).filter(|(at, _)| *at < end);
    let (begin, before_bytes) = settled.copied().unwrap_or_default();
    let time = (end - begin).max(Duration::from_micros(1));
    (total_bytes - before_bytes) as f64 * 8.0 / time.as_secs_f64()
}

fn listen(address: IpAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind((address, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(listener: tokio::net::TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(answer(stream))),
            // Out of file descriptors: wait until some are closed.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Answers until the peer is gone.
async fn answer(mut stream: tokio::net::TcpStream) {
    let _ = stream.set_nodelay(true);
    let zeros = vec![0; PIECE_BYTES];
    while let Ok(exponent) = stream.read_u8().await {
        let mut left = 1_usize << exponent.min(EXPONENT_MAX);
        while left > 0 {
            let bytes = left.min(zeros.len());
            if stream.write_all(&zeros[..bytes]).await.is_err() {
                return;
            }
            left -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_leaves_out_what_came_before_the_link_had_settled() {
        let ms = Duration::from_millis;
        for (come, rate) in [
            // A burst of 1 MB at once, then 1000 bytes each millisecond.
            ((0..=100).map(|at| (ms(at), 1_000_000 + 1000 * at)).collect(), 8e6),
            (vec![(ms(0), 1000), (ms(10), 2000), (ms(50), 6000)], 8e5),
            // All at once: faster than can be measured.
            (vec![(ms(0), 1000)], 8e9),
            (vec![], 0.0),
        ] {
            assert_eq!(settled_rate(&come), rate, "{come:?}");
        }
    }

    /// The best of several attempts counts: the machine may be busy.
    #[test]
    fn loopback_is_fast() {
        let is_fast = (0..10).any(|_| {
            let link = loopback().unwrap();
            assert_eq!((link.kind.as_str(), link.asked.as_str()), ("loopback", "no limit"));
            assert!(link.round_trip_us > 1.0, "{link:?}");
            println!("{link:?}");
            link.rate_bits_per_s > 1e8 && link.round_trip_us < 1e5
        });
        assert!(is_fast);
    }
}
