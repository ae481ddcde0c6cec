//! Disks over the network: one task for each keeps it informed.
//!
//! A disk trusts its state until a time of its own clock, which is computed from the clock that it
//! reported: at most a [`TrustInterval`] after we sent it, however late the message arrives. Then
//! it refuses everything. So a revocation that cannot be sent to a disk is effective when that time
//! is over; before the disk is refreshed again, all capabilities that were ever made for it are
//! voided. Orders to one disk are sent one after the other, in the order in which they were given.

mod asking;
mod ending;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_disk_client::{Control, DISK_PROGRAM, DiskControl, DiskError};
use larder_io::Clock;
use larder_rpc::{Config, RpcClient, Transport};
use larder_wire::capability::{DiskId, Mode};
use larder_wire::disk::words::{Refusal, StatusDone, StoreState};
use larder_wire::meta::words::DiskInfo;
use larder_wire::seal::Setup;
use larder_wire::xdr::Opaque;
use tokio::sync::{mpsc, oneshot, watch};

use super::data::{self, Data, Elsewhere, by_disk};
use super::disk_state::{Identity, Known, granted};
use super::orders::{self, Order, Orders};
use super::pending::Pending;
use super::reach::{Reach, Unreached};
use super::store_check::StoreCheck;
use super::{
    Acknowledged, BytesRead, CapabilityName, Copied, DiskAddress, Disks, Keys, Limits, Minted,
    Stored, Stores, TrustInterval, Trusting, VolumeOwner, Witnessed,
};
use crate::store::records::key_epoch;

/// How often a memory disk is refreshed, which says at each time how much memory its machine has.
const MEMORY_REFRESH: Duration = Duration::from_secs(1);
/// Pause after an order that did not reach its disk.
const PAUSE: Duration = Duration::from_millis(500);
/// How often a disk is refreshed at most when its boot is to be known.
const LOOKS_MAX: u32 = 3;
/// Most orders to a disk that wait.
const ORDERS_MAX: usize = 4096;

/// Disks that are controlled over the network. The tasks end with it.
#[derive(Debug)]
pub struct ControlledDisks {
    disks: RwLock<BTreeMap<DiskId, Keeper>>,
    whose: VolumeOwner,
    keys: Mutex<Keys>,
    trust: Trusting,
    clock: Arc<dyn Clock>,
    limits: watch::Sender<Limits>,
    stores: watch::Sender<Stores>,
}

/// The handle of the task that controls one disk.
#[derive(Clone, Debug)]
struct Keeper {
    public: String,
    is_memory: bool,
    /// For bytes that are copied.
    data: Arc<Data>,
    known: Arc<Mutex<Known>>,
    orders: mpsc::Sender<Order>,
    reach: watch::Receiver<Reach>,
}

impl ControlledDisks {
    /// The disks' key epoch.
    pub fn keys(&self) -> Keys {
        *self.keys_mut()
    }

    pub(super) fn keys_mut(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to control `disks` as this owner of the volume, which lets them trust for the usual
    /// time. To be called within a tokio runtime.
    pub fn start(
        disks: Vec<DiskAddress>,
        whose: VolumeOwner,
        clock: &Arc<dyn Clock>,
    ) -> ControlledDisks {
        ControlledDisks::start_trusting(disks, whose, Trusting::default(), clock)
    }

    /// The same, as an owner that lets them trust for another time.
    pub fn start_trusting(
        disks: Vec<DiskAddress>,
        whose: VolumeOwner,
        trust: Trusting,
        clock: &Arc<dyn Clock>,
    ) -> ControlledDisks {
        let clock = Arc::clone(clock);
        let (limits, stores) = (watch::Sender::default(), watch::Sender::default());
        // Each owner begins with a key epoch of its own.
        let keys = Keys { epoch: key_epoch(whose.owner), since_s: clock.wall().sec };
        let all = ControlledDisks {
            disks: RwLock::default(),
            whose,
            keys: Mutex::new(keys),
            trust,
            clock,
            limits,
            stores,
        };
        disks.into_iter().for_each(|disk| all.add(disk));
        all
    }

    /// Begins to control another disk. To be called within a tokio runtime.
    pub fn add(&self, disk: DiskAddress) {
        let (VolumeOwner { volume, owner, setup }, clock) = (self.whose, &self.clock);
        let DiskAddress { disk, bytes, address, public, is_memory, master } = disk;
        let identity = Identity { master: master.clone(), volume, disk, owner };
        // A rotation from now on finds the disk there.
        let mut all = self.disks.write().unwrap_or_else(PoisonError::into_inner);
        let known = Known::new(identity, StoreCheck::new(is_memory), self.keys().epoch);
        let known = Arc::new(Mutex::new(known));
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let (told, reach) = watch::channel(Reach::Unknown);
        let whose = Control { master, volume, disk, owner };
        let data = Arc::new(Data::new(address, whose.clone(), clock));
        let keep = Keep {
            address,
            whose,
            known: Arc::clone(&known),
            clock: Arc::clone(clock),
            bytes,
            setup,
            reach: told,
            control: None,
            trust: self.trust.interval,
            // By a server before us.
            trusted_until: clock.instant() + self.trust.longest.time(),
            must_void: true,
            has_booted: false,
            pending: Pending::default(),
            data: Arc::clone(&data),
            limits: is_memory.then(|| self.limits.clone()),
            stores: self.stores.clone(),
        };
        tokio::spawn(keep.run(Orders::new(taken)));
        let keeper = Keeper { public, is_memory, data, known, orders, reach };
        all.insert(disk, keeper);
    }

    /// Stops controlling a disk that no longer belongs to the volume: no capability on it is valid.
    /// Orders given before are carried out, or have become irrelevant.
    pub async fn retire(&self, disk: DiskId) {
        let gone = self.disks.write().unwrap_or_else(PoisonError::into_inner).remove(&disk);
        if let Some(keeper) = gone {
            // A task that has ended keeps no caller waiting.
            let _ = keeper.orders.send(Order::Retire).await;
        }
    }

    /// The disks as they are now.
    fn all(&self) -> RwLockReadGuard<'_, BTreeMap<DiskId, Keeper>> {
        self.disks.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long disks are let trust what they know.
    pub fn trust(&self) -> TrustInterval {
        self.trust.interval
    }

    /// Resolves when capabilities can be made for every disk.
    pub async fn ready(&self) {
        let all: Vec<Keeper> = self.all().values().cloned().collect();
        for keeper in all {
            // A task that is gone will never be ready: callers find out by its refusals.
            let _ = keeper.reach.clone().wait_for(Reach::is_ready).await;
        }
    }

    fn data(&self, disk: DiskId) -> Option<Arc<Data>> {
        self.all().get(&disk).map(|keeper| Arc::clone(&keeper.data))
    }

    /// Gives an order to each of these disks; resolves when all are carried out. A disk that is not
    /// ours has nothing to do.
    fn order<T>(
        &self,
        parts: BTreeMap<DiskId, T>,
        order: impl Fn(T, oneshot::Sender<()>) -> Order,
    ) -> Acknowledged {
        let mut sent = Vec::new();
        let all = self.all();
        for (disk, part) in parts {
            if let Some(keeper) = all.get(&disk) {
                let (done, is_done) = oneshot::channel();
                sent.push((keeper.orders.clone(), order(part, done), is_done));
            }
        }
        Box::pin(async move {
            let mut waiting = Vec::new();
            for (orders, order, is_done) in sent {
                // The tasks end with this object: then no caller waits any more.
                let _ = orders.send(order).await;
                waiting.push(is_done);
            }
            for is_done in waiting {
                if is_done.await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        })
    }
}

impl Disks for ControlledDisks {
    fn list(&self) -> Vec<DiskInfo> {
        let info = |(disk, keeper): (&DiskId, &Keeper)| DiskInfo {
            disk: *disk,
            address: Opaque::copy_from_slice(keeper.public.as_bytes()),
            epoch: lock(&keeper.known).boot().map_or(0, |boot| boot.0),
            is_memory: keeper.is_memory,
            leaves: false,
        };
        self.all().iter().map(info).collect()
    }

    fn is_there(&self, disk: DiskId) -> bool {
        self.all().get(&disk).is_some_and(|keeper| keeper.reach.borrow().is_ready())
    }

    fn mint(&self, disk: DiskId, mode: Mode, bytes: &[Range<u64>]) -> Option<Minted> {
        let all = self.all();
        let keeper = all.get(&disk)?;
        lock(&keeper.known).mint(mode, bytes, self.clock.instant())
    }

    fn revoke(&self, capabilities: Vec<(DiskId, CapabilityName)>) -> Acknowledged {
        let of = |(disk, name): (DiskId, CapabilityName)| (disk, (name.group, name.id));
        let names = by_disk(capabilities.into_iter().map(of).collect());
        self.order(names, |names, done| Order::Revoke(names, vec![done]))
    }

    fn clear(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Acknowledged {
        self.order(by_disk(blocks), |blocks, done| Order::Clear(blocks, vec![done]))
    }

    fn await_written(&self, blocks: Vec<(DiskId, Range<u64>)>) -> Witnessed {
        let mut asked = Vec::new();
        for (disk, blocks) in by_disk(blocks) {
            asked.push((self.data(disk), blocks));
        }
        Box::pin(async move {
            // All at the same time: they wait for the same moment.
            let one = |(data, blocks): (Option<Arc<Data>>, Vec<Range<u64>>)| {
                data.map(|data| data.has_written(blocks))
            };
            let asked: Vec<_> = asked.into_iter().map(one).collect();
            let mut are_all = true;
            for is_written in asked {
                are_all &= match is_written {
                    Some(is_written) => is_written.await,
                    None => false,
                };
            }
            are_all
        })
    }

    fn flush(&self, disks: Vec<DiskId>) -> Acknowledged {
        let all = disks.into_iter().map(|disk| (disk, ())).collect();
        self.order(all, |(), done| Order::Flush(done))
    }

    fn copy(
        &self,
        from: (DiskId, Minted),
        to: (DiskId, Minted),
        bytes: Range<u64>,
        at: u64,
    ) -> Copied {
        let ((source, read), (disk, write)) = (from, to);
        let address =
            self.all().get(&source).map(|keeper| keeper.data.reached_by_others(&keeper.public));
        let from = address.zip(granted(&read));
        let from = from.map(|(address, granted)| Elsewhere { address, granted });
        data::copy(from, self.data(disk).zip(granted(&write)), bytes, at)
    }

    fn read(&self, (disk, minted): (DiskId, Minted), bytes: Range<u64>) -> BytesRead {
        data::read(self.data(disk).zip(granted(&minted)), bytes)
    }

    fn write(&self, (disk, minted): (DiskId, Minted), at: u64, bytes: Bytes) -> Stored {
        data::write(self.data(disk).zip(granted(&minted)), at, bytes)
    }

    fn limits(&self) -> watch::Receiver<Limits> {
        self.limits.subscribe()
    }

    fn look(&self) -> Acknowledged {
        self.ask_memory()
    }

    fn stores(&self) -> watch::Receiver<Stores> {
        self.stores.subscribe()
    }

    fn accept_store(&self, disk: DiskId, store: StoreState) {
        let all = self.all();
        let Some(keeper) = all.get(&disk) else { return };
        if lock(&keeper.known).store().accept(store) {
            // Without room for an order it is refreshed a little later.
            let _ = keeper.orders.try_send(Order::Refresh);
        }
    }

    fn void_all(&self) -> Acknowledged {
        let all = self.all().keys().map(|disk| (*disk, ())).collect();
        self.order(all, |(), done| Order::Void(done))
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The task of one disk.
struct Keep {
    address: SocketAddr,
    whose: Control,
    known: Arc<Mutex<Known>>,
    clock: Arc<dyn Clock>,
    reach: watch::Sender<Reach>,
    /// How many bytes it is to have.
    bytes: u64,
    /// The setup that it is to have; none: whichever it has.
    setup: Option<Setup>,
    control: Option<Arc<DiskControl>>,
    trust: TrustInterval,
    /// Until when the disk may trust what it knows, as far as we have allowed it.
    trusted_until: Instant,
    /// Capabilities that should have ended may still be valid: none is made, and the disk is not
    /// refreshed, before it has voided all.
    must_void: bool,
    /// It is in another boot than when it was refreshed last.
    has_booted: bool,
    pending: Pending,
    /// The connection for its bytes.
    data: Arc<Data>,
    /// For a memory disk: where to tell its limit.
    limits: Option<watch::Sender<Limits>>,
    /// Where to tell from which store it serves, or would.
    stores: watch::Sender<Stores>,
}

impl Keep {
    async fn run(mut self, mut orders: Orders) {
        let mut next_refresh = self.clock.instant();
        loop {
            let order = {
                let refresh = self.clock.sleep_until(next_refresh);
                tokio::select! {
                    biased;
                    order = orders.next() => order.map(Some),
                    () = refresh => Some(None),
                }
            };
            match order {
                None => return,
                Some(Some(Order::Retire)) => return self.pending.retire(),
                Some(None | Some(Order::Refresh)) => {
                    next_refresh = self.refresh_now(&mut orders).await;
                }
                Some(Some(Order::Look(done))) => {
                    // One that was started again refuses what is said to the boot before.
                    for _ in 0..LOOKS_MAX {
                        next_refresh = self.refresh_now(&mut orders).await;
                        if self.reach.borrow().is_ready() {
                            break;
                        }
                    }
                    // A caller that is gone does not wait.
                    let _ = done.send(());
                }
                Some(Some(Order::Clear(blocks, waiters))) => {
                    self.pending.add_clear(blocks, waiters);
                    self.catch_up(&mut orders, next_refresh).await;
                }
                Some(Some(Order::Flush(done))) => {
                    self.pending.add_flush(done);
                    self.catch_up(&mut orders, next_refresh).await;
                }
                Some(Some(order)) => self.carry_out(order).await,
            }
        }
    }

    /// Refreshes the disk. Returns when it is to be refreshed next.
    async fn refresh_now(&mut self, orders: &mut Orders) -> Instant {
        let refreshed = self.refresh().await;
        if refreshed.is_ok() {
            self.catch_up(orders, self.clock.instant() + MEMORY_REFRESH).await;
        }
        let pause = match refreshed {
            Ok(()) if self.limits.is_some() => MEMORY_REFRESH,
            Ok(()) => self.trust.refresh(),
            Err(error) => {
                self.is_away(&error);
                PAUSE
            }
        };
        self.clock.instant() + pause
    }

    async fn carry_out(&mut self, order: Order) {
        // A caller that is gone does not wait.
        match order {
            Order::Revoke(names, waiters) => {
                self.revoke(names).await;
                orders::done(waiters);
            }
            Order::Void(done) => {
                // Unless it has been done with the first refresh.
                self.end_all().await;
                let _ = done.send(());
            }
            Order::Rotate(done) => {
                let told = self.tell_keys().await;
                if let Err(error) = &told {
                    self.is_away(error);
                }
                let _ = done.send(told.is_ok());
            }
            Order::Status(done) => {
                let status = self.status().await;
                if let Err(error) = &status {
                    self.is_away(error);
                }
                let _ = done.send(status.ok());
            }
            // The loop has taken them.
            Order::Retire
            | Order::Refresh
            | Order::Look(_)
            | Order::Clear(..)
            | Order::Flush(_) => {}
        }
    }

    /// The disk, once it was reached.
    async fn control(&mut self) -> Result<&Arc<DiskControl>, Unreached> {
        if self.control.is_none() {
            let mut config = Config::new(self.address, Transport::Tcp, DISK_PROGRAM);
            (config.connections, config.timeout) = (1, self.trust.refresh() / 2);
            config.clock = Arc::clone(&self.clock);
            let rpc = RpcClient::connect(config).await.map_err(Unreached::Connect)?;
            self.control = Some(Arc::new(DiskControl::new(rpc, self.whose.clone())));
        }
        self.control.as_ref().ok_or(Unreached::Never)
    }

    async fn status(&mut self) -> Result<StatusDone, Unreached> {
        Ok(self.control().await?.status().await?)
    }

    /// The disk was not reached.
    fn is_away(&self, why: &Unreached) {
        let (disk, away) = (self.whose.disk.0, Reach::Away(why.to_string()));
        // Once: it is tried again twice a second.
        match why.is_to_be_mended() && *self.reach.borrow() != away {
            true => tracing::warn!(disk, "the disk is not used: {why}"),
            false => tracing::debug!(disk, "not reached: {why}"),
        }
        self.reach.send_replace(away);
    }

    /// Lets the disk trust what it knows for another while, and tells it about new groups.
    async fn refresh(&mut self) -> Result<(), Unreached> {
        if self.must_void {
            self.void().await?;
        }
        let until = self.clock.instant() + self.trust.time();
        let known = lock(&self.known).trust(until);
        let trust = match known {
            Some(trust) => trust,
            None => {
                self.ask_clock().await?;
                lock(&self.known).trust(until).ok_or(Unreached::Never)?
            }
        };
        if !lock(&self.known).store().may_serve() {
            // Another store would be that of another boot.
            let mut known = lock(&self.known);
            known.forget_clock();
            return Err(match known.store().is_known() {
                true => Unreached::OtherStore,
                false => Unreached::Unrecorded,
            });
        }
        self.tell_keys().await?;
        // It may hear us, whatever we hear, and whenever; or not at all, and an owner before us may
        // have given it more time.
        self.trusted_until = self.trusted_until.max(until);
        let refreshed = self.control().await?.refresh(Some(trust)).await;
        if let Err(DiskError::Refused(Refusal::OldBoot)) = refreshed {
            lock(&self.known).forget_clock();
        }
        let (done, _) = refreshed?;
        self.trusted_until = until;
        lock(&self.known).refreshed(done.clock_ms, self.clock.instant());
        self.tell_store(done.store, true);
        if let Some(limits) = &self.limits {
            let (disk, limit) = (self.whose.disk, done.limit);
            let has_booted = std::mem::take(&mut self.has_booted);
            limits.send_if_modified(|all| all.insert(disk, limit) != Some(limit) || has_booted);
        }
        while let Some(victim) = { lock(&self.known).wants_group() } {
            let group = lock(&self.known).next_group();
            self.control().await?.replace_group(victim, group).await?;
            lock(&self.known).began(victim, group, self.clock.instant());
        }
        if !lock(&self.known).store().may_be_used() {
            return Err(Unreached::Unrecorded);
        }
        self.reach.send_replace(Reach::Ready);
        Ok(())
    }

    /// Learns in which boot the disk is, and that boot's clock.
    async fn ask_clock(&mut self) -> Result<(), Unreached> {
        let (done, boot) = self.control().await?.refresh(None).await?;
        let now = self.clock.instant();
        let StatusDone { size, setup, .. } = self.status().await?;
        // Also of a disk that is not used: the groups that began there are not those of its next
        // boot.
        if lock(&self.known).booted(boot) {
            self.has_booted = true;
            tracing::info!(disk = self.whose.disk.0, "the disk has started anew");
        }
        if let Some(wanted) = self.setup.filter(|wanted| *wanted != setup) {
            return Err(Unreached::OtherSetup { setup, wanted });
        }
        if size < self.bytes {
            return Err(Unreached::Small { size, wanted: self.bytes });
        }
        // For a boot whose clock is not known, it is not known either what the disk was told.
        self.tell_last_key().await?;
        lock(&self.known).refreshed(done.clock_ms, now);
        self.tell_store(done.store, false);
        Ok(())
    }

    /// The disk has reported its store.
    fn tell_store(&self, store: StoreState, is_let_serve: bool) {
        if let Some(store) = lock(&self.known).store().found(store, is_let_serve) {
            let disk = self.whose.disk;
            self.stores.send_if_modified(|all| all.insert(disk, store) != Some(store));
        }
    }

    /// Does what waits for the disk, as far as the disk does it now; the rest after it was
    /// refreshed. Revocations that come meanwhile go between.
    async fn catch_up(&mut self, orders: &mut Orders, next_refresh: Instant) {
        while self.catch_up_some().await && self.clock.instant() < next_refresh {
            if let Some(revocations) = orders.revocations() {
                self.carry_out(revocations).await;
            }
        }
    }

    /// Does some of it. Returns whether the disk may do more now.
    async fn catch_up_some(&mut self) -> bool {
        let mut pending = std::mem::take(&mut self.pending);
        let (disk, mut is_more) = (self.whose.disk, false);
        if let Ok(control) = self.control().await {
            is_more = pending.clear_some(disk, control).await;
        }
        // A flush uses a capability like a client's: one that no client has, of whichever byte.
        let (bytes, now) = (std::slice::from_ref(&(0..1)), self.clock.instant());
        let mint = || lock(&self.known).mint(Mode::Write, bytes, now);
        let minted = pending.wants_flush().then(mint).flatten();
        if let Some(granted) = minted.as_ref().and_then(granted) {
            pending.flush(disk, &self.data, &granted).await;
        }
        self.pending = pending;
        is_more
    }
}
