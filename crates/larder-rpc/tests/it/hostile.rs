//! Arbitrary bytes, in both directions: whatever they are, the other side continues and answers
//! valid messages.
//!
//! `LARDER_SEED=N` repeats a run, `LARDER_ROUNDS=N` makes it longer.

use bytes::Bytes;
use larder_wire::record::mark;
use larder_wire::rpc::{Credential, Outcome, ReplyHeader, Xid, encode_call, encode_reply};
use larder_wire::xdr::Framing;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::toy::{Back, Nested, Plain, Raw, Recall, Running, ask, connect, gated};

/// Random numbers that a seed decides (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A stream of some records, good and broken ones, and bytes without any sense.
    fn stream(&mut self) -> Vec<u8> {
        let mut stream = Vec::new();
        for _ in 0..=self.below(12) {
            let mut record = self.record().to_vec();
            for _ in 0..self.below(4) {
                let at = self.below(record.len().max(1));
                if let Some(byte) = record.get_mut(at) {
                    *byte = self.next() as u8;
                }
            }
            record.truncate(
                record.len() - self.below(4).saturating_sub(2) * self.below(8).min(record.len()),
            );
            match self.below(8) {
                0 => stream.extend((0..self.below(64)).map(|_| self.next() as u8)),
                1 => stream.extend([&[0, 0, 0, 0][..], &mark(record.len()), &record].concat()),
                _ => stream.extend([&mark(record.len())[..], &record].concat()),
            }
        }
        stream
    }

    /// Calls of both programs and replies to whatever, small xids among them.
    fn record(&mut self) -> Bytes {
        let xid = Xid(self.below(8) as u32);
        let number = self.next() as u32;
        let framing = Framing::Datagram;
        let none = &Credential::None;
        match self.below(6) {
            0 => encode_call(xid, none, &Plain(number), framing),
            1 => encode_call(xid, none, &Recall(number), framing),
            2 => encode_call(xid, none, &Back(number), framing),
            3 => encode_call(xid, none, &Nested(number), framing),
            4 => {
                let outcome = Outcome::AuthError(number);
                encode_reply(ReplyHeader { xid, outcome }, &(), framing)
            }
            _ => encode_reply(ReplyHeader { xid, outcome: Outcome::Success }, &number, framing),
        }
        .to_bytes()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn begin() -> (Random, u64) {
    let seed = number("LARDER_SEED").unwrap_or_else(larder_rpc::random_u64).max(1);
    eprintln!("LARDER_SEED={seed}");
    (Random(seed), number("LARDER_ROUNDS").unwrap_or(150))
}

#[tokio::test]
async fn a_server_goes_on_whatever_its_clients_send() {
    let (mut random, rounds) = begin();
    let server = Running::begin(false, |_| ()).await;
    let (honest, _callbacks) = server.client(|_| ()).await;
    for round in 0..rounds {
        let mut raw = Raw::connect(server.address).await;
        let stream = random.stream();
        // It may have been cut off already.
        let _ = raw.stream.write_all(&stream).await;
        drop(raw);
        let number = round as u32;
        assert_eq!(ask(&honest, Recall(number)).await, Ok(number + 1000));
    }
    assert_eq!(server.stats().connections, rounds + 1);
}

#[tokio::test]
async fn a_client_goes_on_whatever_its_server_sends() {
    let (mut random, rounds) = begin();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (callbacks, _begun, gate) = gated();
    gate.add_permits(1 << 20);
    let connecting = connect(listener.local_addr().unwrap(), &callbacks, |_| ());
    let (client, mut raw) = tokio::join!(connecting, Raw::accept(&listener));
    for round in 0..rounds {
        let stream = random.stream();
        let _ = raw.stream.write_all(&stream).await;
        drop(raw);
        raw = Raw::accept(&listener).await;
        let number = round as u32;
        let (asked, ()) = tokio::join!(ask(&client, Plain(number)), async {
            let (xid, asked) = raw.called().await;
            raw.reply(xid, asked).await;
        });
        assert_eq!(asked, Ok(number));
    }
}
