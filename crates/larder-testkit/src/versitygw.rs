//! versitygw: an S3 server whose buckets are directories.

use crate::sandbox::{Sandbox, StartError, failed, listens};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The port on which it listens.
const PORT: u16 = 7070;

/// Makes the certificate for an address, and its key.
type Identity<'a> = Box<dyn FnOnce(IpAddr) -> (String, String) + 'a>;

/// A running S3 server. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Versitygw {
    sandbox: Sandbox,
    host: Ipv4Addr,
    /// The directory of buckets, the log, and certificate and key if it has TLS.
    state: PathBuf,
    tls: bool,
}

impl Versitygw {
    /// The account that may do everything.
    pub const ACCESS: &str = "larder";
    /// Its secret.
    pub const SECRET: &str = "only-for-tests";
    /// The bucket that is there from the beginning.
    pub const BUCKET: &str = "archive";

    /// Starts a server with an empty bucket, and waits until it answers.
    ///
    /// # Errors
    /// [`StartError`]; with the last lines of the server's log if it did not start.
    pub fn start() -> Result<Versitygw, StartError> {
        Versitygw::start_as(None)
    }

    /// The same with TLS. `identity` makes the certificate for an address, and its key, in PEM.
    ///
    /// # Errors
    /// [`StartError`], likewise.
    pub fn start_tls(
        identity: impl FnOnce(IpAddr) -> (String, String),
    ) -> Result<Versitygw, StartError> {
        Versitygw::start_as(Some(Box::new(identity)))
    }

    fn start_as(identity: Option<Identity<'_>>) -> Result<Versitygw, StartError> {
        let mut sandbox = Sandbox::start(true)?;
        let found = sandbox.run("command -v versitygw >/dev/null");
        found.map_err(|_| StartError::NotInstalled { program: "versitygw" })?;
        let host = sandbox.link()?;
        let state = sandbox.state_directory("versitygw")?;
        let mut server = Versitygw { sandbox, host, state, tls: identity.is_some() };
        let mut made = std::fs::create_dir_all(server.bucket());
        if let Some(identity) = identity {
            let (certificate, key) = identity(host.into());
            made = made
                .and_then(|()| std::fs::write(server.state.join("certificate"), certificate))
                .and_then(|()| std::fs::write(server.state.join("key"), key));
        }
        made.map_err(|cause| failed("state directory", cause))?;
        server.begin()?;
        Ok(server)
    }

    /// The URL at which it is reached.
    pub fn endpoint(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}:{PORT}", self.host)
    }

    /// The directory with the bucket's objects, as files that are named by their keys.
    pub fn bucket(&self) -> PathBuf {
        self.buckets().join(Versitygw::BUCKET)
    }

    /// Kills the server. What it has acknowledged is in its files.
    ///
    /// # Errors
    /// [`StartError::Failed`] if it does not run.
    pub fn kill(&mut self) -> Result<(), StartError> {
        self.sandbox.run("{ kill -9 $child && wait $child; } 2>/dev/null; true")
    }

    /// Starts the server again after [`kill`](Self::kill) and waits until it answers.
    ///
    /// # Errors
    /// [`StartError::Failed`] with the last lines of its log.
    pub fn begin(&mut self) -> Result<(), StartError> {
        let (log, buckets) = (self.log(), self.buckets());
        let tls = match (self.tls, self.state.display()) {
            (true, state) => format!("--cert {state}/certificate --key {state}/key"),
            (false, _) => String::new(),
        };
        self.sandbox.run(&format!(
            "ROOT_ACCESS_KEY={} ROOT_SECRET_KEY={} versitygw --quiet --port {}:{PORT} {tls} \
             posix {} >{} 2>&1 & child=$!",
            Versitygw::ACCESS,
            Versitygw::SECRET,
            self.host,
            buckets.display(),
            log.display(),
        ))?;
        let address = SocketAddr::new(IpAddr::V4(self.host), PORT);
        self.sandbox.wait_for("versitygw", "child", &[Path::new(&log)], || listens(address))
    }

    fn buckets(&self) -> PathBuf {
        self.state.join("buckets")
    }

    fn log(&self) -> PathBuf {
        self.state.join("log")
    }
}

impl Drop for Versitygw {
    fn drop(&mut self) {
        self.sandbox.end();
        // What cannot be removed stays in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.state);
    }
}
