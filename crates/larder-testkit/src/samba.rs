//! Samba: SMB 2 and 3, and `smbclient` as somebody else who uses the same share.

use crate::sandbox::{Sandbox, StartError, failed};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The longest that a server may take to start.
const START_MAX: Duration = Duration::from_secs(30);
/// Between two questions whether it has.
const POLL: Duration = Duration::from_millis(10);
/// Where it listens.
const PORT: u16 = 445;

/// How the server is set up.
#[derive(Clone, Copy, Debug)]
pub struct SambaOptions {
    /// Whether who has no account may use the share.
    pub guest: bool,
    /// Whether messages must be signed.
    pub signing: bool,
    /// Whether messages must be encrypted.
    pub encryption: bool,
    /// The lowest dialect, as smb.conf spells it: `SMB2_10`, `SMB3_11`, `NT1`.
    pub protocol_min: &'static str,
    /// The highest dialect.
    pub protocol_max: &'static str,
    /// How much it logs, from 0 to 10.
    pub log_level: u8,
    /// More lines for the section of the share.
    pub share_lines: &'static str,
}

impl Default for SambaOptions {
    /// One user, every dialect from 2.1 on, signing and encryption as the client wants.
    fn default() -> SambaOptions {
        SambaOptions {
            guest: false,
            signing: false,
            encryption: false,
            protocol_min: "SMB2_10",
            protocol_max: "SMB3_11",
            log_level: 1,
            share_lines: "",
        }
    }
}

/// A running Samba that shares one directory. Ends when dropped.
#[derive(Debug)]
pub struct Samba {
    sandbox: Sandbox,
    host: Ipv4Addr,
    /// Configuration, databases and logs.
    state: PathBuf,
}

impl Samba {
    /// The name of the share.
    pub const SHARE: &str = "share";
    /// The only user, whose rights on the server are those of root.
    pub const USER: &str = "root";
    /// Their password.
    pub const PASSWORD: &str = "larder, only for tests";

    /// Starts a server that shares `export`, and waits until it answers.
    ///
    /// # Errors
    /// [`StartError`]; with the server's last words if it did not come up.
    pub fn start(export: &Path, options: &SambaOptions) -> Result<Samba, StartError> {
        let mut sandbox = Sandbox::start(true)?;
        let host = sandbox.link()?;
        let state = std::env::temp_dir().join(format!("larder-samba-{}", sandbox.process()));
        for folder in FOLDERS {
            let made = std::fs::create_dir_all(state.join(folder));
            made.map_err(|cause| failed("state directory", cause))?;
        }
        std::fs::write(state.join("conf"), configuration(&state, export, options))
            .map_err(|cause| failed("configuration", cause))?;
        for program in ["smbd", "smbpasswd", "smbclient"] {
            let found = sandbox.run(&format!("command -v {program} >/dev/null"));
            found.map_err(|_| StartError::NotInstalled { program })?;
        }
        let (user, password, place) = (Samba::USER, Samba::PASSWORD, state.display());
        sandbox.run(&format!(
            "printf '%s\\n%s\\n' '{password}' '{password}' | \
             smbpasswd -c {place}/conf -s -a {user} >/dev/null 2>&1"
        ))?;
        let mut samba = Samba { sandbox, host, state };
        samba.boot()?;
        Ok(samba)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host(), PORT)
    }

    /// Where it is.
    pub fn host(&self) -> IpAddr {
        self.host.into()
    }

    /// Starts the server after [`kill`](Self::kill) and waits until it answers.
    ///
    /// # Errors
    /// [`StartError::Failed`] with the server's last words.
    pub fn boot(&mut self) -> Result<(), StartError> {
        let state = self.state.display();
        self.sandbox.run(&format!(
            "smbd -F --no-process-group -s {state}/conf >{state}/out 2>&1 & child=$!"
        ))?;
        let deadline = Instant::now() + START_MAX;
        while let Err(error) = TcpStream::connect_timeout(&self.address(), Duration::from_secs(1)) {
            let dead = self.sandbox.run("kill -0 $child").is_err();
            if dead || Instant::now() > deadline {
                return Err(failed("smbd does not answer", self.last_words(&error)));
            }
            // There is no event to wait for: the server is somebody else's.
            std::thread::park_timeout(POLL);
        }
        Ok(())
    }

    fn last_words(&self, error: &io::Error) -> String {
        let read = |name| std::fs::read_to_string(self.state.join(name)).unwrap_or_default();
        let log = read("out") + &read("log");
        let last = log.lines().rev().take(10).collect::<Vec<_>>();
        format!("{error}\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"))
    }

    /// How many connections to the server are established, as its kernel says.
    ///
    /// # Panics
    /// If `/proc` does not tell.
    pub fn connections(&self) -> usize {
        // Of every line the second word is the local address, the fourth the state (proc(5)).
        let (port, established) = (format!(":{PORT:04X}"), "01");
        let tables = ["tcp", "tcp6"].map(|table| {
            let path = format!("/proc/{}/net/{table}", self.sandbox.process());
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        });
        let sockets = tables.iter().flat_map(|table| table.lines().skip(1));
        let ours = sockets.map(|line| line.split_whitespace().collect::<Vec<_>>());
        ours.filter(|words| words[1].ends_with(&port) && words[3] == established).count()
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.state.join("log")).unwrap_or_default()
    }

    /// Ends the server, with the processes that serve its connections, as a crash would.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it is gone already.
    pub fn kill(&mut self) -> Result<(), StartError> {
        self.sandbox.run(
            "{ family=$(pgrep -P $child); kill -9 $child $family; wait $child; \
             for one in $family; do while kill -0 $one; do sleep 0.01; done; done; } 2>/dev/null; true",
        )
    }

    /// Has the server end everybody's use of the share, with their connections open: what they opened is
    /// closed, and they have to connect to the share anew.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it cannot be told so.
    pub fn close_share(&mut self) -> Result<(), StartError> {
        let (state, share) = (self.state.display(), Samba::SHARE);
        self.sandbox.run(&format!(
            "smbcontrol --configfile={state}/conf smbd close-share {share} >/dev/null 2>&1"
        ))
    }

    /// Stops the server from answering, with its connections open.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it is gone.
    pub fn freeze(&mut self) -> Result<(), StartError> {
        self.sandbox.run(
            "for one in $child $(pgrep -P $child); do kill -STOP $one; \
             until grep -q '^State:.T' /proc/$one/status; do sleep 0.01; done; done",
        )
    }

    /// Lets it go on after [`freeze`](Self::freeze).
    ///
    /// # Errors
    /// [`StartError::Failed`] if it is gone.
    pub fn thaw(&mut self) -> Result<(), StartError> {
        self.sandbox.run("kill -CONT $child $(pgrep -P $child)")
    }

    /// Has `smbclient` carry out commands on the share, and answers what it says. Blocks.
    ///
    /// # Errors
    /// [`StartError::Failed`] with its words if it says that it failed.
    pub fn client(&self, commands: &str) -> Result<String, StartError> {
        let output = Command::new("smbclient")
            .arg(format!("//{}/{}", self.host, Samba::SHARE))
            .arg("--configfile")
            .arg(self.state.join("conf"))
            .arg("--user")
            .arg(format!("{}%{}", Samba::USER, Samba::PASSWORD))
            .args(["--max-protocol", "SMB3", "--command", commands])
            .output()
            .map_err(|cause| StartError::Missing { program: "smbclient", cause })?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(said),
            false => Err(failed(format!("smbclient: {commands}"), said)),
        }
    }
}

impl Drop for Samba {
    fn drop(&mut self) {
        // Left to the system's cleaning of temporary files if it fails.
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

const FOLDERS: [&str; 6] = ["private", "lock", "state", "cache", "pid", "ncalrpc"];

fn configuration(state: &Path, export: &Path, options: &SambaOptions) -> String {
    let (place, export) = (state.display(), export.display());
    let yes = |it_is| if it_is { "yes" } else { "no" };
    let signing = if options.signing { "mandatory" } else { "auto" };
    let encryption = if options.encryption { "required" } else { "default" };
    let guests = if options.guest { "Bad User" } else { "Never" };
    let SambaOptions { protocol_min, protocol_max, log_level, share_lines, .. } = options;
    // Whoever logs in works as root, so that tests need no users of the machine.
    format!(
        "[global]\n server role = standalone server\n disable netbios = yes\n smb ports = {PORT}\n \
         private dir = {place}/private\n lock directory = {place}/lock\n \
         state directory = {place}/state\n cache directory = {place}/cache\n \
         pid directory = {place}/pid\n ncalrpc dir = {place}/ncalrpc\n \
         passdb backend = smbpasswd:{place}/private/passwords\n log file = {place}/log\n \
         log level = {log_level}\n max log size = 0\n load printers = no\n printing = bsd\n \
         printcap name = /dev/null\n disable spoolss = yes\n map to guest = {guests}\n \
         guest account = nobody\n server signing = {signing}\n server smb encrypt = {encryption}\n \
         server min protocol = {protocol_min}\n server max protocol = {protocol_max}\n \
         client min protocol = NT1\n\
         [{}]\n path = {export}\n read only = no\n guest ok = {}\n force user = root\n \
         store dos attributes = yes\n strict sync = yes\n {share_lines}\n",
        Samba::SHARE,
        yes(options.guest),
    )
}
