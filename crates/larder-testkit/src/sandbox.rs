//! A shell in namespaces of its own, and the link to it.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use thiserror::Error;

/// The longest that a server may take to start, even on a busy machine.
const START_MAX: Duration = Duration::from_secs(120);
/// The pause between two checks whether it has started.
const POLL: Duration = Duration::from_millis(10);
/// How many subnets there are to choose from.
const SUBNETS: u32 = 1 << 20;
/// How many subnets in use are skipped before we give up.
const SUBNETS_TRIED: u32 = 1000;
/// How many lines of a log's end an error shows.
const LAST_LINES: usize = 10;

/// Why a server did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Starting a server needs root.
    #[error("a test server needs root, for namespaces and low ports: run the tests as root")]
    NotRoot,
    /// A program is missing.
    #[error("cannot run {program}: {cause}")]
    Missing {
        /// Its name.
        program: &'static str,
        /// Why it could not be run.
        cause: std::io::Error,
    },
    /// A server is not installed.
    #[error("{program} is not installed")]
    NotInstalled {
        /// Its program.
        program: &'static str,
    },
    /// A step failed.
    #[error("{step}: {detail}")]
    Failed {
        /// The step.
        step: String,
        /// The error message.
        detail: String,
    },
}

pub(crate) fn failed(step: impl Into<String>, detail: impl std::fmt::Display) -> StartError {
    StartError::Failed { step: step.into(), detail: detail.to_string() }
}

/// A shell in its own namespaces, which executes one command at a time.
#[derive(Debug)]
pub(crate) struct Sandbox {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Sandbox {
    /// Starts the shell. With `own_network` it gets its own network namespace, with `lo` up.
    pub(crate) fn start(own_network: bool) -> Result<Sandbox, StartError> {
        // Mounts made outside later appear inside, but not the reverse.
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "slave", "--pid", "--fork"]);
        if own_network {
            unshare.arg("--net");
        }
        let mut child = unshare
            .args(["sh", "-c", LOOP])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|cause| StartError::Missing { program: "unshare", cause })?;
        let (commands, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.expect("stdout is piped"));
        let mut sandbox = Sandbox { child, commands, answers };
        sandbox.run("true").map_err(|_| StartError::NotRoot)?;
        // Inside, processes have numbers of their own.
        sandbox.run("mount -t proc proc /proc")?;
        // An unmount outside of one of our mounts would wait for its copy in here, unless the copy
        // is unmounted with it.
        sandbox
            .run("umount --all --lazy --no-canonicalize --types fuse.larder 2>/dev/null || true")?;
        if own_network {
            sandbox.run("ip link set lo up")?;
        }
        Ok(sandbox)
    }

    /// Executes one line of shell, and waits until it ends. It must print nothing: output would be
    /// taken for an answer.
    pub(crate) fn run(&mut self, line: &str) -> Result<(), StartError> {
        debug_assert!(!line.contains('\n'));
        let commands = self.commands.as_mut().expect("taken on drop only");
        writeln!(commands, "{line}").map_err(|cause| failed(line, cause))?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(|cause| failed(line, cause))?;
        match answer.trim() {
            "0" => Ok(()),
            "" => Err(failed(line, "the sandbox is gone")),
            status => Err(failed(line, format!("status {status}"))),
        }
    }

    /// Waits until a server answers `ask`. Its process id is in the shell's variable `child`.
    ///
    /// # Errors
    /// If it ended or took too long: with its last answer and the ends of its logs.
    pub(crate) fn wait_for(
        &mut self,
        server: &str,
        child: &str,
        logs: &[&Path],
        ask: impl Fn() -> io::Result<()>,
    ) -> Result<(), StartError> {
        let deadline = Instant::now() + START_MAX;
        while let Err(error) = ask() {
            let dead = self.run(&format!("kill -0 ${child}")).is_err();
            if dead || Instant::now() > deadline {
                let step = format!("{server} does not answer");
                return Err(failed(step, format!("{error}\n{}", last_words(logs))));
            }
            // There is no event to wait for: the server is a third-party program.
            std::thread::park_timeout(POLL);
        }
        Ok(())
    }

    /// Connects the test's namespace and the sandbox by a pair of virtual Ethernet devices. Returns
    /// the address inside.
    pub(crate) fn link(&mut self) -> Result<Ipv4Addr, StartError> {
        let (subnet, name) = self.cable()?;
        // Each subnet has four addresses of 10.64.0.0/10.
        let base = u32::from(Ipv4Addr::new(10, 64, 0, 0)) + 4 * subnet;
        let (ours, theirs) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        ip(&format!("address add {ours}/30 dev {name}"))?;
        ip(&format!("link set {name} up"))?;
        self.run(&format!("ip address add {theirs}/30 dev eth0 && ip link set eth0 up"))?;
        Ok(theirs)
    }

    /// Cuts the link: messages are lost in both directions, without an error at either side.
    pub(crate) fn cut(&mut self) -> Result<(), StartError> {
        self.run("ip link set eth0 down")
    }

    /// Restores the link after [`cut`](Self::cut).
    pub(crate) fn mend(&mut self) -> Result<(), StartError> {
        self.run("ip link set eth0 up")
    }

    /// Makes the pair of devices. Their names contain the number of the subnet, so that the name
    /// also reserves the subnet: if two tests used the same addresses, packets would go to the
    /// other test's link.
    fn cable(&self) -> Result<(u32, String), StartError> {
        static LINKS: AtomicU32 = AtomicU32::new(0);
        let namespace = self.child.id();
        for _ in 0..SUBNETS_TRIED {
            let number = LINKS.fetch_add(1, Relaxed);
            let subnet = std::process::id().wrapping_mul(64).wrapping_add(number) % SUBNETS;
            let name = format!("larder{subnet:x}");
            let line = format!("link add {name} type veth peer name eth0 netns {namespace}");
            match ip(&line) {
                Err(StartError::Failed { detail, .. }) if detail.contains("File exists") => {}
                made => return made.map(|()| (subnet, name)),
            }
        }
        Err(failed("ip link add", "so many names in a row are in use"))
    }

    /// The process id whose namespaces are the sandbox's.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Makes an empty directory for a server's files. A test that died may have left one of this
    /// name, since process ids are reused.
    pub(crate) fn state_directory(&self, server: &str) -> Result<PathBuf, StartError> {
        let path = std::env::temp_dir().join(format!("larder-{server}-{}", self.process()));
        let cleared = match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(&path),
        };
        cleared.map(|()| path).map_err(|cause| failed("state directory", cause))
    }

    /// Ends the sandbox and all processes in it: none of them writes any more.
    pub(crate) fn end(&mut self) {
        drop(self.commands.take());
        // If waiting fails there is nothing left to wait for.
        let _ = self.child.wait();
    }
}

/// Whether a server accepts connections.
pub(crate) fn listens(address: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop)
}

/// The ends of these logs.
pub(crate) fn last_words(logs: &[&Path]) -> String {
    let read = |log: &&Path| std::fs::read_to_string(log).unwrap_or_default();
    let text: String = logs.iter().map(read).collect();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

/// Executes lines until its input ends. This shell is process 1 of its namespace: when it exits,
/// the kernel kills every other process there.
const LOOP: &str = r#"while IFS= read -r line; do eval "$line" </dev/null >&2; echo "$?"; done"#;

fn ip(arguments: &str) -> Result<(), StartError> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|cause| StartError::Missing { program: "ip", cause })?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(failed(format!("ip {arguments}"), String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.end();
    }
}
