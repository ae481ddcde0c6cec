//! versitygw: an S3 server whose buckets are directories.

use crate::sandbox::{Sandbox, StartError, failed, listens};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The port on which it listens.
const PORT: u16 = 7070;

/// A running S3 server. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Versitygw {
    sandbox: Sandbox,
    host: Ipv4Addr,
    /// The directory of buckets, and the log.
    state: PathBuf,
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
        let mut sandbox = Sandbox::start(true)?;
        let found = sandbox.run("command -v versitygw >/dev/null");
        found.map_err(|_| StartError::NotInstalled { program: "versitygw" })?;
        let host = sandbox.link()?;
        let state = sandbox.state_directory("versitygw")?;
        let mut server = Versitygw { sandbox, host, state };
        std::fs::create_dir_all(server.bucket())
            .map_err(|cause| failed("state directory", cause))?;
        server.begin()?;
        Ok(server)
    }

    /// The URL at which it is reached.
    pub fn endpoint(&self) -> String {
        format!("http://{}:{PORT}", self.host)
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
        self.sandbox.run(&format!(
            "ROOT_ACCESS_KEY={} ROOT_SECRET_KEY={} versitygw --quiet --port {}:{PORT} \
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
