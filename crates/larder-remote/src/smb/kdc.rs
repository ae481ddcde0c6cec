//! A proxy to a realm's KDC, over TCP and within limits of our own.
//!
//! The library asks by UDP first and waits ten seconds for each answer, three times, and reports an
//! error of the KDC only as text. So it is given the address of a proxy on the loopback instead.
//! The proxy forwards requests to the KDC over TCP (RFC 4120, 7.2.2), which every KDC speaks and
//! which detects at once that no KDC is there; it inspects the replies.
//!
//! Any user of this machine may connect to the proxy while a login lasts. That user gets from the
//! KDC what a direct request would get. Forged answers can make a login fail, as an attacker
//! between us and a KDC can; tickets are sealed with keys that no such user has.

use super::kerberos_error::KerberosError;
use larder_io::Clock;
use smb2::auth::kerberos::messages::parse_krb_error;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Where KDCs listen.
const PORT: u16 = 88;
/// Longest wait for one KDC; then the next one of the realm is asked.
const KDC_MAX: Duration = Duration::from_secs(3);
/// Longest time that all questions of a login take: less than the time for a mount.
const ALL_MAX: Duration = Duration::from_secs(7);
/// Largest message, in bytes: what a datagram to the library holds.
const MESSAGE_BYTES_MAX: usize = 65_507;
/// First bytes of messages (RFC 4120, 5.10).
const AS_REP: u8 = 0x6b;
const TGS_REP: u8 = 0x6d;
const KRB_ERROR: u8 = 0x7e;

/// The KDC's last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing yet.
    Nothing,
    /// Here is a ticket-granting ticket.
    Granting,
    /// Here is a ticket for the service.
    Ticket,
    /// An error (RFC 4120, 7.5.9), with its text.
    Error(i32, String),
}

impl Said {
    fn of(message: &[u8]) -> Said {
        match message.first() {
            Some(&AS_REP) => Said::Granting,
            Some(&TGS_REP) => Said::Ticket,
            Some(&KRB_ERROR) => match parse_krb_error(message) {
                Ok(error) => Said::Error(error.error_code, error.e_text.unwrap_or_default()),
                Err(_) => Said::Nothing,
            },
            _ => Said::Nothing,
        }
    }
}

/// A proxy to the KDCs of a realm.
pub(super) struct Kdc {
    socket: UdpSocket,
    /// In the order in which they are asked, as `HOST[:PORT]`.
    addresses: Vec<String>,
    /// The one that answered last: it is asked first, since the others may take time.
    answered: AtomicUsize,
    clock: Arc<dyn Clock>,
    said: Mutex<Said>,
}

impl Kdc {
    /// Starts the proxy. Limits are measured by this clock.
    pub(super) async fn open(
        addresses: Vec<String>,
        clock: Arc<dyn Clock>,
    ) -> Result<Kdc, KerberosError> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let socket = socket.map_err(|cause| unreachable(&addresses, cause.to_string()))?;
        let (answered, said) = (AtomicUsize::new(0), Mutex::new(Said::Nothing));
        Ok(Kdc { socket, addresses, answered, clock, said })
    }

    /// The address that the library takes for the KDC's.
    pub(super) fn address_for_library(&self) -> Result<String, KerberosError> {
        let address = self.socket.local_addr();
        let address = address.map_err(|cause| unreachable(&self.addresses, cause.to_string()))?;
        Ok(address.to_string())
    }

    /// For messages.
    pub(super) fn name(&self) -> String {
        self.addresses.join(", ")
    }

    /// The last answer.
    pub(super) fn said(&self) -> Said {
        self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Carries questions and answers, until one has no answer.
    pub(super) async fn serve(&self) -> KerberosError {
        let deadline = self.clock.instant() + ALL_MAX;
        let mut question = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let (length, from) = match self.socket.recv_from(&mut question).await {
                Ok(received) => received,
                Err(cause) => return unreachable(&self.addresses, cause.to_string()),
            };
            let answer = match self.ask(&question[..length], deadline).await {
                Ok(answer) => answer,
                Err(cause) => return unreachable(&self.addresses, cause),
            };
            *self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                Said::of(&answer);
            if let Err(cause) = self.socket.send_to(&answer, from).await {
                return unreachable(&self.addresses, cause.to_string());
            }
        }
    }

    /// Asks one KDC after another.
    ///
    /// # Errors
    /// The failure of the last one.
    async fn ask(&self, question: &[u8], deadline: Instant) -> Result<Vec<u8>, String> {
        let mut problem = "none is named".to_owned();
        let count = self.addresses.len();
        let first = self.answered.load(Ordering::Relaxed);
        for index in (first..first + count).map(|index| index % count) {
            let asked = self.clock.timeout(KDC_MAX, exchange(&self.addresses[index], question));
            problem = match self.clock.timeout_at(deadline, asked).await {
                Ok(Ok(Ok(answer))) => {
                    self.answered.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Ok(Err(cause))) => cause.to_string(),
                Ok(Err(_)) => format!("no answer within {} s", KDC_MAX.as_secs()),
                Err(_) => format!("no answer within {} s", ALL_MAX.as_secs()),
            };
        }
        Err(problem)
    }
}

fn unreachable(addresses: &[String], cause: String) -> KerberosError {
    KerberosError::Unreachable { kdc: addresses.join(", "), cause }
}

/// One question over a connection of its own: a length of four bytes, then the message.
async fn exchange(address: &str, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(with_port(address)).await?;
    let length = u32::try_from(question.len()).unwrap_or(u32::MAX);
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let length = stream.read_u32().await? as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(std::io::Error::other(format!("its answer has {length} bytes")));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`, an IPv6 address; `tcp/` before it, as Heimdal has it.
fn with_port(address: &str) -> String {
    let address = address.split_once('/').map_or(address, |(_, address)| address);
    let colons = address.matches(':').count();
    match (address.starts_with('['), colons) {
        (false, 0) => format!("{address}:{PORT}"),
        (false, 1) => address.to_owned(),
        (false, _) => format!("[{address}]:{PORT}"),
        (true, _) if address.ends_with(']') => format!("{address}:{PORT}"),
        (true, _) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_io::RealClock;
    use tokio::net::{TcpListener, TcpSocket};

    #[test]
    fn addresses_of_kdcs() {
        for (given, wanted) in [
            ("kdc.test", "kdc.test:88"),
            ("kdc.test:8888", "kdc.test:8888"),
            ("tcp/kdc.test", "kdc.test:88"),
            ("fe80::1", "[fe80::1]:88"),
            ("[fe80::1]", "[fe80::1]:88"),
            ("[fe80::1]:8888", "[fe80::1]:8888"),
        ] {
            assert_eq!(with_port(given), wanted, "{given}");
        }
    }

    #[test]
    fn what_was_said_is_told_by_its_first_byte() {
        assert_eq!(Said::of(&[0x6b, 0]), Said::Granting);
        assert_eq!(Said::of(&[0x6d, 0]), Said::Ticket);
        assert_eq!(Said::of(&[0x7e, 2, 0, 0]), Said::Nothing);
        assert_eq!(Said::of(&[]), Said::Nothing);
    }

    /// Answers each question of three bytes, this many times.
    async fn answer(listener: TcpListener, times: usize) {
        for _ in 0..times {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = [0; 7];
            stream.read_exact(&mut question).await.unwrap();
            assert_eq!(question, *b"\0\0\0\x03ask");
            stream.write_all(b"\0\0\0\x02\x6d\0").await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_kdc_that_hangs_up_is_followed_by_the_next_and_not_asked_again() {
        let listen = || TcpListener::bind("127.0.0.1:0");
        let (first, second) = (listen().await.unwrap(), listen().await.unwrap());
        let address = |one: &TcpListener| one.local_addr().unwrap().to_string();
        let kdc =
            Kdc::open(vec![address(&first), address(&second)], Arc::new(RealClock)).await.unwrap();
        let hanging_up = tokio::spawn(async move { drop(first.accept().await.unwrap()) });
        let answering = tokio::spawn(answer(second, 2));
        let library = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut reply = [0; 10];
        for _ in 0..2 {
            library.send_to(b"ask", kdc.address_for_library().unwrap()).await.unwrap();
            tokio::select! {
                received = library.recv_from(&mut reply) => assert_eq!(received.unwrap().0, 2),
                error = kdc.serve() => panic!("{error}"),
            }
            assert_eq!((kdc.said(), &reply[..2]), (Said::Ticket, &b"\x6d\0"[..]));
            assert_eq!(kdc.answered.load(Ordering::Relaxed), 1);
        }
        hanging_up.await.unwrap();
        answering.await.unwrap();
        // The ports of both may be in use by now; nothing listens on these.
        let silent = [(); 2].map(|()| TcpSocket::new_v4().unwrap());
        let addresses = silent.each_ref().map(|one| {
            one.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            one.local_addr().unwrap().to_string()
        });
        let kdc = Kdc::open(addresses.to_vec(), Arc::new(RealClock)).await.unwrap();
        library.send_to(b"ask", kdc.address_for_library().unwrap()).await.unwrap();
        assert!(kdc.serve().await.to_string().contains("refused"));
    }
}
