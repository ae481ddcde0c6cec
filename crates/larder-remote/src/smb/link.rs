//! One connection with its session and its share, and how requests use it.
//!
//! Every exchange runs as a task of its own: once begun it is completed, even if its caller gives
//! up. The library allocates message ids before it sends, and a gap in them ends the connection.

use super::frames::{ConnectionEvent, EventSink, FrameFilter};
use super::greeting::Greeting;
use super::kerberos;
use super::mount::{CONNECT_MAX, MountError, MountOptions, Step};
use super::status::{self, Failure};
use super::version::Version;
use super::wire;
use larder_io::Clock;
use larder_rpc::patience::RECONNECT_MAX;
use larder_rpc::series::Track;
use larder_rpc::stats::{ProcedureStats, Procedures};
use smb2::client::{Connection, Session};
use smb2::msg::tree_connect::{
    ShareType, TreeConnectRequest, TreeConnectRequestFlags, TreeConnectResponse,
};
use smb2::pack::{Pack, ReadCursor, Unpack, WriteCursor};
use smb2::transport::{ConnectOptions, TcpTransport};
use smb2::types::flags::{Capabilities, ShareFlags};
use smb2::types::status::NtStatus;
use smb2::types::{Command, CreditCharge, FileId, SessionId, TreeId};
use smb2::{CompoundOp, Frame, NegotiatedParams};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Names of the commands, by number (MS-SMB2, 2.2.1).
pub(super) const COMMANDS: &[&str] = &[
    "NEGOTIATE",
    "SESSION_SETUP",
    "LOGOFF",
    "TREE_CONNECT",
    "TREE_DISCONNECT",
    "CREATE",
    "CLOSE",
    "FLUSH",
    "READ",
    "WRITE",
    "LOCK",
    "IOCTL",
    "CANCEL",
    "ECHO",
    "QUERY_DIRECTORY",
    "CHANGE_NOTIFY",
    "QUERY_INFO",
    "SET_INFO",
    "OPLOCK_BREAK",
];

/// A request to be.
pub(super) struct Op {
    command: Command,
    body: Box<dyn Pack>,
    charge: u16,
}

impl Op {
    /// A request whose payload fits one credit.
    pub(super) fn new(command: Command, body: impl Pack + 'static) -> Op {
        Op { command, body: Box::new(body), charge: 1 }
    }

    /// A request with this much payload, in one direction or the other.
    pub(super) fn with_payload(self, bytes: usize) -> Op {
        let charge = u16::try_from(bytes.div_ceil(1 << 16)).unwrap_or(u16::MAX).max(1);
        Op { charge, ..self }
    }
}

/// Packs a body and notes how long it was.
struct Measured<'a> {
    body: &'a dyn Pack,
    bytes: AtomicUsize,
}

impl Pack for Measured<'_> {
    fn pack(&self, cursor: &mut WriteCursor) {
        let start = cursor.position();
        self.body.pack(cursor);
        self.bytes.store(cursor.position() - start, Ordering::Relaxed);
    }
}

/// A reply, whatever its status.
pub(super) struct Reply {
    pub(super) status: NtStatus,
    body: Vec<u8>,
}

impl Reply {
    /// Decodes the reply of a success.
    pub(super) fn read<T: Unpack>(&self) -> Result<T, Failure> {
        // "Buffer overflow" is a warning that a name was cut, which is not used.
        if self.status != NtStatus::SUCCESS && self.status != NtStatus::BUFFER_OVERFLOW {
            return Err(Failure::Status(self.status));
        }
        T::unpack(&mut ReadCursor::new(&self.body)).map_err(garbled)
    }

    /// # Errors
    /// If it is no success.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.status {
            NtStatus::SUCCESS => Ok(()),
            status => Err(Failure::Status(status)),
        }
    }

    /// The body of a success, to be taken apart.
    pub(super) fn into_body(self) -> Result<Vec<u8>, Failure> {
        self.check().map(|()| self.body)
    }
}

/// The failure for a reply that cannot be decoded.
pub(super) fn garbled(cause: smb2::Error) -> Failure {
    tracing::warn!(%cause, "the SMB server sent a reply that makes no sense");
    Failure::Is(larder_vfs::Error::Io)
}

/// Counts and times of requests.
#[derive(Clone)]
pub(super) struct Accounts {
    /// By command, on all connections of the mount.
    pub(super) commands: Arc<Procedures>,
    /// In sum, on this connection and those that it replaced.
    pub(super) connection: Arc<ProcedureStats>,
    /// The same as it happens.
    pub(super) track: Arc<Track>,
}

impl Accounts {
    /// Of a connection that replaces none.
    pub(super) fn new(commands: &Arc<Procedures>, clock: &Arc<dyn Clock>) -> Accounts {
        let track = Arc::new(Track::new(Arc::clone(clock)));
        Accounts { commands: Arc::clone(commands), connection: Arc::default(), track }
    }
}

/// A connection that can be used until it is lost.
pub(super) struct Link {
    connection: Connection,
    tree: TreeId,
    session: SessionId,
    /// Which connection of this mount it is, from 1.
    pub(super) generation: u64,
    params: NegotiatedParams,
    /// Set when it is lost: since when the server has been asked in vain.
    lost: OnceLock<Instant>,
    closing: watch::Sender<Closing>,
    events: EventSink,
    accounts: Accounts,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
}

/// Opens that are being closed in the background, numbered in their order.
#[derive(Default)]
struct Closing {
    begun: u64,
    under_way: BTreeSet<u64>,
    /// Those that nobody waits for and that are still being made: that takes long if another
    /// client has to return a lease.
    given_up: BTreeSet<u64>,
}

impl Closing {
    /// Whether none is left of those that were begun before this one.
    fn is_over(set: &BTreeSet<u64>, limit: u64) -> bool {
        set.first().is_none_or(|at| *at >= limit)
    }
}

impl Link {
    /// Connects, logs in and opens the share, within [`CONNECT_MAX`]. The server ends the session
    /// `previous`: its remaining requests must not be carried out after new ones.
    pub(super) async fn establish(
        options: &MountOptions,
        (generation, previous): (u64, SessionId),
        events: EventSink,
        accounts: Accounts,
    ) -> Result<Arc<Link>, MountError> {
        let establishing = Box::pin(connect(options, (generation, previous), events, accounts));
        match options.clock.timeout(CONNECT_MAX, establishing).await {
            Ok(done) => done.map(Arc::new),
            Err(_) => Err(MountError::too_slow(options)),
        }
    }

    /// The session that it is.
    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    /// Counts and times of its requests.
    pub(super) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Whether it is known to be of no use any more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Since when the server has been asked in vain, if it is lost.
    pub(super) fn lost_since(&self) -> Option<Instant> {
        self.lost.get().copied()
    }

    /// Gives the connection up, and reports that. The server has not answered `since`.
    pub(super) fn lose(&self, since: Instant) {
        if self.lost.set(since).is_ok() {
            self.connection.mark_dead();
            (self.events)(ConnectionEvent::End);
        }
    }

    /// How long nothing has come from the server.
    pub(super) fn silent_for(&self) -> Duration {
        self.connection.inbound().since_last_byte.unwrap_or(Duration::MAX)
    }

    /// Closes an open without waiting for that.
    pub(super) fn close_later(self: &Arc<Link>, id: FileId) {
        let link = Arc::clone(self);
        self.close_by(|closing| &mut closing.under_way, async move {
            // It is closed if there is no connection.
            let _ = link.ask(wire::close(id)).await;
        });
    }

    /// Has an open closed that is still being made, and that nobody waits for.
    pub(super) fn close_given_up(
        self: &Arc<Link>,
        closing: impl Future<Output = ()> + Send + 'static,
    ) {
        self.close_by(|closing| &mut closing.given_up, closing);
    }

    fn close_by(
        self: &Arc<Link>,
        set: fn(&mut Closing) -> &mut BTreeSet<u64>,
        close: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut number = 0;
        self.closing.send_modify(|closing| {
            (number, closing.begun) = (closing.begun, closing.begun + 1);
            set(closing).insert(number);
        });
        let link = Arc::clone(self);
        self.runtime.spawn(async move {
            close.await;
            link.closing.send_modify(|closing| {
                set(closing).remove(&number);
            });
        });
    }

    /// Waits until the closes that were begun by now have ended.
    pub(super) async fn closed(&self) {
        self.until(|closing, limit| Closing::is_over(&closing.under_way, limit)).await;
    }

    /// The same; opens that were given up by now are made and closed, too.
    pub(super) async fn closed_all(&self) {
        let is_over = Closing::is_over;
        self.until(|closing, limit| {
            is_over(&closing.under_way, limit) && is_over(&closing.given_up, limit)
        })
        .await;
    }

    async fn until(&self, is_done: impl Fn(&Closing, u64) -> bool) {
        let mut closing = self.closing.subscribe();
        let limit = closing.borrow().begun;
        // The sender is ours.
        let _ = closing.wait_for(|closing| is_done(closing, limit)).await;
    }

    /// Largest READ and WRITE of the server, in bytes.
    pub(super) fn payloads_max(&self) -> (u32, u32) {
        // Without LARGE_MTU, which 2.1 may lack, a request uses one credit.
        let most = match self.params.capabilities.contains(Capabilities::LARGE_MTU) {
            true => 8 << 20,
            false => 1 << 16,
        };
        (self.params.max_read_size.min(most), self.params.max_write_size.min(most))
    }

    /// Largest answer to request for a directory that needs several, in bytes.
    pub(super) fn answer_max(&self) -> u32 {
        self.params.max_transact_size.min(self.payloads_max().0).min(512 << 10)
    }

    /// Whether the server has leases.
    pub(super) fn has_leases(&self) -> bool {
        self.params.capabilities.contains(Capabilities::LEASING)
    }

    /// Whether leases are those of SMB 3.
    pub(super) fn has_leases_v2(&self) -> bool {
        Version::of(self.params.dialect) >= Some(Version::V3_0)
    }

    /// The version spoken.
    pub(super) fn version(&self) -> Version {
        Version::of(self.params.dialect).unwrap_or(Version::V2_1)
    }

    /// The connection's CHANGE_NOTIFYs that were sent, by message id.
    pub(super) fn notifications(&self) -> Vec<u64> {
        let outstanding = self.connection.outstanding_requests().into_iter();
        let sent = outstanding
            .filter(|one| one.command == Command::ChangeNotify && one.sent_age.is_some());
        sent.map(|one| one.message_id).collect()
    }

    /// Where tasks of it run.
    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Sends requests in one message, each for the file of the one before, and waits for the
    /// replies: one for each.
    pub(super) async fn chain(self: &Arc<Link>, ops: Vec<Op>) -> Result<Vec<Reply>, Failure> {
        if self.is_lost() {
            return Err(Failure::Lost);
        }
        let link = Arc::clone(self);
        let exchange = self.runtime.spawn(async move { link.exchange(&ops).await });
        exchange.await.unwrap_or(Err(Failure::Lost))
    }

    /// Sends one request and waits for its reply.
    pub(super) async fn ask(self: &Arc<Link>, op: Op) -> Result<Reply, Failure> {
        self.chain(vec![op]).await?.pop().ok_or(Failure::Lost)
    }

    async fn exchange(&self, ops: &[Op]) -> Result<Vec<Reply>, Failure> {
        let start = self.clock.instant();
        let count = u32::try_from(ops.len()).unwrap_or(u32::MAX);
        let track = Arc::clone(&self.accounts.track);
        let mut in_flight = track.offer(count, self.connection.credits().into());
        let measured: Vec<_> =
            ops.iter().map(|op| Measured { body: &*op.body, bytes: AtomicUsize::new(0) }).collect();
        let tree = Some(self.tree);
        let results = if let ([op], [body]) = (ops, &measured[..]) {
            let charge = CreditCharge(op.charge);
            vec![self.connection.execute_with_credits(op.command, body, tree, charge).await]
        } else {
            let compound: Vec<_> = ops
                .iter()
                .zip(&measured)
                .map(|(op, body)| CompoundOp {
                    command: op.command,
                    body,
                    tree_id: tree,
                    credit_charge: CreditCharge(op.charge),
                })
                .collect();
            self.connection
                .execute_compound(&compound)
                .await
                .map_err(|cause| self.failed(&cause, start))?
        };
        let mut replies = Vec::with_capacity(ops.len());
        let mut failure = None;
        for ((op, body), result) in ops.iter().zip(&measured).zip(results) {
            self.account(op.command, body.bytes.load(Ordering::Relaxed), start, result.as_ref());
            match &result {
                Ok(_) => in_flight.answered(),
                Err(smb2::Error::Timeout) => in_flight.timed_out(),
                Err(_) => {}
            }
            match result {
                Ok(frame) if status::ends_session(frame.header.status) => {
                    tracing::info!(status = %frame.header.status, "the SMB session ended");
                    self.lose(self.clock.instant());
                    failure = Some(Failure::Lost);
                }
                Ok(frame) => {
                    replies.push(Reply { status: frame.header.status, body: frame.body });
                }
                Err(cause) => failure = Some(self.failed(&cause, start)),
            }
        }
        failure.map_or(Ok(replies), Err)
    }

    /// The meaning of an error of the library for an exchange begun at `start`: this connection
    /// cannot be used any more.
    fn failed(&self, cause: &smb2::Error, start: Instant) -> Failure {
        if !self.is_lost() {
            tracing::debug!(%cause, generation = self.generation, "an SMB request failed");
        }
        let is_silent =
            matches!(cause, smb2::Error::Timeout | smb2::Error::ServerUnresponsive { .. });
        self.lose(if is_silent { start } else { self.clock.instant() });
        Failure::Lost
    }

    fn account(
        &self,
        command: Command,
        sent: usize,
        start: Instant,
        result: Result<&Frame, &smb2::Error>,
    ) {
        const HEADER: u64 = super::frames::HEADER_BYTES as u64;
        for one in [self.accounts.commands.of(command as u32), &*self.accounts.connection] {
            one.calls.fetch_add(1, Ordering::Relaxed);
            one.bytes_sent.fetch_add(HEADER + sent as u64, Ordering::Relaxed);
            match result {
                Ok(frame) => {
                    let refused = status::is_refusal(frame.header.status);
                    one.refused.fetch_add(refused.into(), Ordering::Relaxed);
                    one.bytes_received.fetch_add(frame.raw.len() as u64, Ordering::Relaxed);
                    let taken = self.clock.instant().saturating_duration_since(start);
                    one.latency.record(taken);
                    one.round_trip.record(taken);
                }
                Err(cause) => {
                    one.errors.fetch_add(1, Ordering::Relaxed);
                    if matches!(cause, smb2::Error::Timeout) {
                        one.timeouts.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.connection.mark_dead();
    }
}

async fn connect(
    options: &MountOptions,
    (generation, previous): (u64, SessionId),
    events: EventSink,
    accounts: Accounts,
) -> Result<Link, MountError> {
    let at = |step: Step| move |cause| MountError::at(step, options, &cause);
    let wait_max = if previous == SessionId::NONE { CONNECT_MAX } else { RECONNECT_MAX };
    let transport =
        TcpTransport::connect_with(options.address(), ConnectOptions::with_timeout(wait_max));
    let transport = Arc::new(transport.await.map_err(at(Step::Connect))?);
    let greeting = Arc::new(Greeting::new(options.version_max));
    let filter = || {
        let greeting = Arc::clone(&greeting);
        Box::new(FrameFilter::new(Arc::clone(&transport), greeting, Arc::clone(&events)))
    };
    let host = options.host.clone();
    let mut connection = Connection::from_transport(filter(), filter(), host.clone());
    connection.negotiate().await.map_err(at(Step::Negotiate))?;
    greeting.hash_into(&connection);
    connection.set_previous_session_id(previous);
    let params = connection.params().expect("they are there after a negotiation");
    let version = Version::of(params.dialect);
    let (offered, wanted) = (version.map_or("2.0.2", Version::name), options.version_min);
    if version < Some(wanted) {
        return Err(MountError::OldVersion { host, offered, wanted: wanted.name() });
    }
    let session = log_in(options, &mut connection, &greeting).await?;
    if options.sign && !session.should_sign {
        return Err(MountError::NoSigning);
    }
    let (tree, share_encrypts) = open_share(options, &connection).await?;
    if (options.seal || share_encrypts) && !session.should_encrypt {
        encrypt(&mut connection, &session, &params)
            .ok_or(MountError::NoEncryption { host, version: offered })?;
    }
    connection.set_response_timeout(Some(options.timeout));
    let runtime = tokio::runtime::Handle::current();
    let lost = OnceLock::new();
    let session = session.session_id;
    let closing = watch::Sender::default();
    Ok(Link {
        connection,
        tree,
        session,
        generation,
        params,
        lost,
        closing,
        events,
        accounts,
        clock: Arc::clone(&options.clock),
        runtime,
    })
}

/// Logs in, by Kerberos or NTLM.
async fn log_in(
    options: &MountOptions,
    connection: &mut Connection,
    greeting: &Greeting,
) -> Result<Session, MountError> {
    let login = &options.credentials;
    if let Some(kerberos) = &login.kerberos {
        return kerberos::log_in(kerberos, options, connection, greeting).await;
    }
    let session = Session::setup(connection, &login.user, login.password.expose(), &login.domain);
    session.await.map_err(|cause| MountError::at(Step::Login, options, &cause))
}

/// Opens the share. Returns its number, and whether it requires encryption.
async fn open_share(
    options: &MountOptions,
    connection: &Connection,
) -> Result<(TreeId, bool), MountError> {
    let at = |cause| MountError::at(Step::Share, options, &cause);
    let path = format!(r"\\{}\{}", options.host, options.share);
    let request = TreeConnectRequest { flags: TreeConnectRequestFlags::default(), path };
    let frame = connection.execute(Command::TreeConnect, &request, None).await.map_err(at)?;
    if frame.header.status != NtStatus::SUCCESS {
        let (status, command) = (frame.header.status, Command::TreeConnect);
        return Err(at(smb2::Error::Protocol { status, command }));
    }
    let reply = TreeConnectResponse::unpack(&mut ReadCursor::new(&frame.body)).map_err(at)?;
    if reply.share_type != ShareType::Disk {
        let (host, share) = (options.host.clone(), options.share.clone());
        return Err(MountError::NotAFolder { host, share });
    }
    let tree = frame.header.tree_id.ok_or(smb2::Error::Disconnected).map_err(at)?;
    Ok((tree, reply.share_flags.contains(ShareFlags::ENCRYPT_DATA)))
}

/// Encrypts from now on, if that was negotiated.
fn encrypt(
    connection: &mut Connection,
    session: &Session,
    params: &NegotiatedParams,
) -> Option<()> {
    let able = params.capabilities.contains(Capabilities::ENCRYPTION);
    let cipher = params.cipher.or(able.then_some(smb2::crypto::encryption::Cipher::Aes128Ccm))?;
    let (ours, theirs) = (session.encryption_key.clone()?, session.decryption_key.clone()?);
    connection.activate_encryption(ours, theirs, cipher);
    Some(())
}
