//! A link as the kernel makes it: a network namespace behind a pair of virtual Ethernet devices,
//! each with a token bucket (`tc tbf`). A server runs inside, its clients outside.
//!
//! The rate is of frames, so payload over TCP gets some 5 % less. There is no delay and no loss
//! besides that of a full queue: `tc netem` is not in every kernel. Where those are wanted, a
//! [`proxy`](super::proxy) goes before it.
//!
//! Several may live at once, of one process or of many: names and addresses are made of the process
//! id and a count, and addresses that are in use are passed over. Leftovers of a dead process with
//! the same id are removed first.
//!
//! It needs root, and `ip` and `tc` of the Debian package iproute2.

use std::fs::File;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Shape;

/// Name of the device inside.
const INSIDE: &str = "eth0";

/// A full frame of Ethernet.
const FRAME_BYTES: u64 = 1514;

/// What may be sent at once after a pause, as time at the rate; see [`burst_bytes`].
const BURST_MS: u64 = 5;
/// A bucket holds at least two frames, or nothing gets through.
const BURST_BYTES_MIN: u64 = 2 * FRAME_BYTES;

/// How long a frame may wait in the queue before it is dropped, as time at the rate.
const QUEUE_MS: u64 = 50;
/// The queue is no shorter than this: it must hold the fragments of a large datagram.
const QUEUE_BYTES_MIN: u64 = 64 << 10;

/// Frames that TCP may pass to a device in one piece, unless configured otherwise.
const FRAMES_AT_ONCE: u64 = 65_535;

/// Subnets of four addresses in 10.213.0.0/16.
const SUBNETS: u32 = 1 << 14;
/// Subnets among which a free one is searched.
const SUBNETS_TRIED_MAX: u32 = 64;
/// Namespaces of one process that have a range of subnets of their own: a suite may have 20
/// contestants with 10 clients each, and a link that was moved into the server's namespace is not
/// seen to use its subnet.
const SUBNETS_PER_PROCESS: u32 = 512;

/// A network namespace and the link to it. When dropped, both are removed; processes inside lose
/// the network.
#[derive(Debug)]
pub struct Netns {
    names: Names,
    subnet: Subnet,
    namespace: OwnedFd,
    rate_bits_per_s: Option<u64>,
}

impl Netns {
    /// Makes a namespace, and a link to it with a rate in each direction, above zero; `None` is as
    /// fast as the machine. Blocks for some tens of milliseconds.
    ///
    /// # Errors
    /// A line that says what to do if we are not root, or if `ip` or `tc` is missing; else their
    /// error.
    pub fn create(rate_bits_per_s: Option<u64>) -> Result<Netns> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a network namespace needs root: run this as root, or use the proxy, which needs no rights"
        );
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Netns::numbered(std::process::id(), COUNT.fetch_add(1, Relaxed), rate_bits_per_s)
    }

    fn numbered(process: u32, count: u32, rate_bits_per_s: Option<u64>) -> Result<Netns> {
        let names = Names::of(process, count);
        names.remove();
        let subnet = free_subnet(process, count)?;
        let namespace = lay(&names, subnet)?;
        let mut netns = Netns { names, subnet, namespace, rate_bits_per_s: None };
        netns.shape(rate_bits_per_s)?;
        Ok(netns)
    }

    /// Our address, as seen from inside.
    pub fn outside(&self) -> Ipv4Addr {
        self.subnet.host(1)
    }

    /// The address inside, where a server listens.
    pub fn inside(&self) -> Ipv4Addr {
        self.subnet.host(2)
    }

    /// Name of the namespace, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.names.namespace
    }

    /// The requested properties of the link.
    pub fn asked(&self) -> Shape {
        Shape { rate_bits_per_s: self.rate_bits_per_s, ..Shape::default() }
    }

    /// Moves the outer end of the link, which has no rate, into the namespace of `server`: from in
    /// here that is then reachable at its own [`inside`](Self::inside), and nothing else is.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn connect_to(&self, server: &Netns) -> Result<()> {
        ensure!(self.rate_bits_per_s.is_none(), "a link between namespaces has no rate");
        let (device, there) = (&self.names.device, server.name());
        run("ip", &[], &format!("link set {device} netns {there}"))?;
        let at = ["-netns", there];
        // A device loses its addresses when it is moved.
        let address = prefix(self.subnet, 1);
        run("ip", &at, &format!("address add {address} dev {device}"))?;
        run("ip", &at, &format!("link set {device} up"))?;
        let (server, gateway) = (server.inside(), self.outside());
        run("ip", &["-netns", self.name()], &format!("route add {server} via {gateway}"))
    }

    /// Changes the rate while the link lives, in both directions, or removes it.
    ///
    /// # Errors
    /// If it is zero, or what `tc` said; then the link may have two different rates.
    pub fn shape(&mut self, rate_bits_per_s: Option<u64>) -> Result<()> {
        Shape { rate_bits_per_s, ..Shape::default() }.check()?;
        let inside = ["-netns", &self.names.namespace];
        for (at, device) in [(&[][..], self.names.device.as_str()), (&inside, INSIDE)] {
            let frames = rate_bits_per_s.map_or(FRAMES_AT_ONCE, frames_at_once);
            run("ip", at, &format!("link set {device} gso_max_segs {frames}"))?;
            // Existing connections check the route again.
            run("ip", at, "route flush cache")?;
            match (rate_bits_per_s, self.rate_bits_per_s) {
                (Some(rate), _) => {
                    let change = format!("qdisc replace dev {device} root {}", bucket(rate));
                    run("tc", at, &change)?;
                }
                (None, Some(_)) => run("tc", at, &format!("qdisc del dev {device} root"))?,
                (None, None) => (),
            }
        }
        self.rate_bits_per_s = rate_bits_per_s;
        Ok(())
    }

    /// Does `work` on a thread inside the namespace, and waits for it. What it opens or starts
    /// belongs to the namespace and may be used outside: sockets, processes.
    ///
    /// # Errors
    /// If the thread cannot be started or cannot enter.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = self.namespace.as_fd();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
                Ok::<T, rustix::io::Errno>(work())
            });
            match thread.context("cannot start a thread")?.join() {
                Ok(done) => done.context("cannot enter the network namespace"),
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        })
    }

    /// Starts a program inside. It shares everything else with us: its mounts are visible outside.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        let shown = format!("{command:?}");
        self.enter(|| command.spawn())?.with_context(|| format!("cannot run {shown}"))
    }

    /// A command that runs a program inside, by `ip netns exec`: to be passed on and shown. That
    /// also gives it a mount namespace of its own, so its mounts are not visible outside; for that
    /// there is [`spawn`](Self::spawn).
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names.namespace, program]);
        command
    }
}

/// The names of a namespace on this machine. When dropped, what has these names is removed.
#[derive(Debug)]
struct Names {
    namespace: String,
    /// The device outside; at most 15 characters.
    device: String,
}

impl Names {
    fn of(process: u32, count: u32) -> Names {
        Names {
            namespace: format!("larder-bench-{process}-{count}"),
            device: device_name(process, count),
        }
    }

    /// Removes what has these names. Usually there is nothing, which is not an error.
    fn remove(&self) {
        // The device first: the namespace exists as long as a process is inside.
        for (object, name) in [("link", &self.device), ("netns", &self.namespace)] {
            let _ = run("ip", &[object, "del"], name);
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A process id has at most 22 bits, which leaves 15 characters enough for any count.
fn device_name(process: u32, count: u32) -> String {
    format!("lb{process:x}-{:x}", count % (1 << 24))
}

/// Four addresses: of the network, ours, of the inside, of broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subnet(u32);

impl Subnet {
    /// The first to try: next to it are those of the same process, then those of other processes.
    fn first(process: u32, count: u32) -> Subnet {
        let count = count % SUBNETS_PER_PROCESS;
        Subnet((process.wrapping_mul(SUBNETS_PER_PROCESS) + count) % SUBNETS)
    }

    /// The next one that no neighbour begins with.
    fn next(self) -> Subnet {
        Subnet((self.0 + SUBNETS_PER_PROCESS) % SUBNETS)
    }

    fn host(self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 213, 0, 0)) + 4 * self.0 + number)
    }
}

/// A subnet that no device of this machine has an address in.
fn free_subnet(process: u32, count: u32) -> Result<Subnet> {
    let candidates =
        std::iter::successors(Some(Subnet::first(process, count)), |subnet| Some(subnet.next()));
    for subnet in candidates.take(SUBNETS_TRIED_MAX as usize) {
        let used = run_for_text("ip", &["-4", "-o", "address", "show", "to"], &prefix(subnet, 0))?;
        if used.trim().is_empty() {
            return Ok(subnet);
        }
    }
    bail!("{SUBNETS_TRIED_MAX} subnets of 10.213.0.0/16 are in use: remove what uses them")
}

fn prefix(subnet: Subnet, host: u32) -> String {
    format!("{}/30", subnet.host(host))
}

/// Makes the namespace and lays the cable. Answers the namespace.
fn lay(names: &Names, subnet: Subnet) -> Result<OwnedFd> {
    let Names { namespace, device } = names;
    run("ip", &["netns", "add"], namespace)?;
    let path = format!("/run/netns/{namespace}");
    let opened = File::open(&path).with_context(|| path.clone())?;
    let (ours, theirs) = (prefix(subnet, 1), prefix(subnet, 2));
    run("ip", &[], &format!("link add {device} type veth peer name {INSIDE} netns {namespace}"))?;
    run("ip", &[], &format!("address add {ours} dev {device}"))?;
    run("ip", &[], &format!("link set {device} up"))?;
    let inside = ["-netns", namespace];
    run("ip", &inside, &format!("address add {theirs} dev {INSIDE}"))?;
    run("ip", &inside, &format!("link set {INSIDE} up"))?;
    run("ip", &inside, "link set lo up")?;
    Ok(opened.into())
}

/// Parameters of a token bucket, in bytes where `tc` is not told otherwise.
fn bucket(rate_bits_per_s: u64) -> String {
    let burst = burst_bytes(rate_bits_per_s);
    let queue = bytes_in(rate_bits_per_s, QUEUE_MS).max(QUEUE_BYTES_MIN);
    format!("tbf rate {rate_bits_per_s}bit burst {burst} limit {}", burst + queue)
}

/// Small enough to be sent in a moment, large enough that a late timer costs no rate.
fn burst_bytes(rate_bits_per_s: u64) -> u64 {
    bytes_in(rate_bits_per_s, BURST_MS).max(BURST_BYTES_MIN)
}

/// How many frames TCP may pass in one piece: no more than fit into the bucket. The bucket would
/// cut a larger piece, and TCP would learn only by losses that a part did not fit into the queue; a
/// piece that is refused whole is simply sent again. With larger pieces, 10 Mbit/s were measured as
/// anything from 4 to 11.
fn frames_at_once(rate_bits_per_s: u64) -> u64 {
    // tc makes buckets slightly smaller than requested.
    (burst_bytes(rate_bits_per_s) * 15 / 16 / FRAME_BYTES).clamp(1, FRAMES_AT_ONCE)
}

fn bytes_in(rate_bits_per_s: u64, ms: u64) -> u64 {
    rate_bits_per_s / 8_000 * ms
}

/// Runs `program` with `first`, then the words of `rest`.
fn run(program: &str, first: &[&str], rest: &str) -> Result<()> {
    run_for_text(program, first, rest).map(drop)
}

fn run_for_text(program: &str, first: &[&str], rest: &str) -> Result<String> {
    let arguments = || first.iter().copied().chain(rest.split(' '));
    let output =
        Command::new(program).args(arguments()).output().map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => {
                anyhow!("there is no program {program}: install the Debian package iproute2")
            }
            _ => anyhow!(cause).context(format!("cannot run {program}")),
        })?;
    if !output.status.success() {
        let shown = arguments().collect::<Vec<_>>().join(" ");
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {shown}: {}", said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_of_devices_are_short_enough() {
        for (process, count) in [(1, 0), (4_194_304, u32::MAX)] {
            let device = device_name(process, count);
            assert!(device.len() <= 15, "{device}");
        }
    }

    #[test]
    fn namespaces_of_one_process_and_of_neighbours_begin_with_different_subnets() {
        let firsts: HashSet<u32> = (0..SUBNETS / SUBNETS_PER_PROCESS)
            .flat_map(|process| (0..SUBNETS_PER_PROCESS).map(move |count| (process, count)))
            .map(|(process, count)| Subnet::first(process, count).0)
            .collect();
        assert_eq!(firsts.len(), SUBNETS as usize);
        assert!(firsts.iter().all(|subnet| *subnet < SUBNETS));
    }

    #[test]
    fn subnets_lie_in_their_range() {
        assert_eq!(Subnet(0).host(1), Ipv4Addr::new(10, 213, 0, 1));
        assert_eq!(Subnet(65).host(2), Ipv4Addr::new(10, 213, 1, 6));
        assert_eq!(Subnet(SUBNETS - 1).host(3), Ipv4Addr::new(10, 213, 255, 255));
        assert_eq!(Subnet(SUBNETS - 1).next().host(0), Ipv4Addr::new(10, 213, 7, 252));
    }

    #[test]
    fn buckets_are_of_the_rate_but_never_too_small() {
        for (rate, tbf) in [
            (1_000_000, "tbf rate 1000000bit burst 3028 limit 68564"),
            (100_000_000, "tbf rate 100000000bit burst 62500 limit 687500"),
        ] {
            assert_eq!(bucket(rate), tbf);
        }
    }

    #[test]
    fn leftovers_of_a_dead_process_are_removed_first() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: a network namespace needs root");
            return;
        }
        // No count of this process comes that far.
        let create = || Netns::numbered(std::process::id(), 1 << 23, Some(1_000_000)).unwrap();
        let dead = create();
        let (name, inside) = (dead.name().to_owned(), dead.inside());
        std::mem::forget(dead);
        let alive = create();
        assert_eq!((alive.name(), alive.inside()), (name.as_str(), inside));
    }

    #[test]
    fn a_subnet_in_use_is_passed_over() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: a network namespace needs root");
            return;
        }
        // Counts that begin with the same subnet.
        let count = (1 << 23) + 1;
        let create = |count| Netns::numbered(std::process::id(), count, None).unwrap();
        let (one, two) = (create(count), create(count + SUBNETS_PER_PROCESS));
        assert_eq!(two.subnet, one.subnet.next());
    }

    #[test]
    fn a_missing_program_is_told_with_its_package() {
        let error = run("larder-no-such-program", &[], "x").unwrap_err();
        assert!(error.to_string().contains("iproute2"), "{error}");
    }

    #[test]
    fn what_a_program_says_is_told() {
        let error =
            run("sh", &["-c"], "exit").map(|()| run("sh", &["-c", "echo no >&2; false"], "x"));
        let error = error.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "sh -c echo no >&2; false x: no");
    }
}
