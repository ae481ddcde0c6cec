//! A disk behind its service, a metadata server that controls it, and clients with capabilities.
//!
//! Messages are delivered to the service directly, without sockets, so that tests can keep them,
//! alter them and deliver them again. Time is simulated.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_disk::{Config, Device, DiskService, Identity, Store};
use larder_io::{Clock, Disk, MemDisk, SimClock};
use larder_rpc::server::{Config as ServerConfig, Dispatcher, SourcePorts};
use larder_wire::Procedure;
use larder_wire::capability::{
    BootEpoch, Capability, CapabilityId, DiskId, Extent, Extents, GroupId, KeyEpoch, Mode, VolumeId,
};
use larder_wire::disk::sealed::{Sealed, SealedReply};
use larder_wire::disk::session::{AskError, Asked, Granted, Hailing, Session};
use larder_wire::disk::words::{
    EpochHead, FlushHead, GroupReplaceHead, Head, ReadHead, RefreshHead, Refusal, Res, RevokeHead,
    StatusHead, Trust, WriteHead,
};
use larder_wire::rpc::{Credential, Outcome, ReplyHeader, Xid, encode_call};
use larder_wire::seal::{MasterKey, Setup};
use larder_wire::xdr::{Array, Decode, Framing};

pub(crate) const VOLUME: VolumeId = VolumeId([7; 16]);
pub(crate) const DISK: DiskId = DiskId(1);
pub(crate) const GROUP: GroupId = GroupId(10);
pub(crate) const KEY: KeyEpoch = KeyEpoch(4);
pub(crate) const SIZE: u64 = 64 * 4096;
/// How long the metadata server lets the disk trust it.
pub(crate) const TRUST: Duration = Duration::from_secs(60);
/// How long capabilities are good.
pub(crate) const LIFE: Duration = Duration::from_secs(30);

/// A disk and the metadata server that controls it.
pub(crate) struct Stand {
    pub(crate) clock: Arc<SimClock>,
    pub(crate) device: Arc<Device>,
    service: Arc<Dispatcher<DiskService>>,
    pub(crate) control: Session,
    next_id: AtomicU32,
}

pub(crate) fn master() -> MasterKey {
    MasterKey::new([5; 32])
}

pub(crate) fn extent(offset: u64, length: u64) -> Extent {
    Extent::new(offset, length).unwrap()
}

/// A request, and the state that opens its reply.
pub(crate) type Request<H> = (Sealed<H>, Asked);

impl Stand {
    /// A disk of which the metadata server has just taken control: key epoch 4, group 10.
    pub(crate) async fn new(setup: Setup) -> Stand {
        let stand = Stand::untold(setup).await;
        stand.tell().await;
        stand
    }

    /// Gives the disk what it needs to know.
    pub(crate) async fn tell(&self) {
        self.order(&EpochHead { key: KEY }).await.unwrap();
        self.order(&GroupReplaceHead { victim: None, group: GROUP }).await.unwrap();
        self.refresh().await;
    }

    /// A disk that has heard nothing from the metadata server yet.
    pub(crate) async fn untold(setup: Setup) -> Stand {
        Stand::on(&MemDisk::new(), setup).await
    }

    /// The same, with its store on `disk`.
    pub(crate) async fn on(disk: &dyn Disk, setup: Setup) -> Stand {
        let clock = Arc::new(SimClock::new());
        let identity = Identity { volume: VOLUME, disk: DISK, setup };
        let store = Store::open(disk, "disk", &identity, SIZE).unwrap();
        let config = Config::new(identity, master(), Arc::clone(&clock) as Arc<dyn Clock>);
        let device = Arc::new(Device::start(config, store));
        let mut server = ServerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        server.source_ports = SourcePorts::Any;
        let service = DiskService::new(Arc::clone(&device));
        let service = Arc::new(Dispatcher::new(server, service));
        let control = control(&service, 1, [9; 32]).await.unwrap();
        Stand { clock, device, service, control, next_id: AtomicU32::new(0) }
    }

    /// Calls a procedure of the disk.
    pub(crate) async fn call<P: Procedure>(&self, args: &P) -> Result<P::Res, Outcome> {
        call(&self.service, args).await
    }

    /// Takes control, as another owner of the volume.
    pub(crate) async fn control_as(&self, owner: u64, nonce: [u8; 32]) -> Res<Session> {
        control(&self.service, owner, nonce).await
    }

    pub(crate) async fn order<H: Head>(&self, head: &H) -> Result<H::Done, AskError> {
        self.order_in(&self.control, head).await
    }

    pub(crate) async fn order_in<H: Head>(
        &self,
        session: &Session,
        head: &H,
    ) -> Result<H::Done, AskError> {
        self.deliver(session.order(head, Bytes::new()).unwrap()).await.map(|(done, _)| done)
    }

    pub(crate) async fn refresh(&self) {
        self.deliver(self.refreshing()).await.unwrap();
    }

    /// The request that lets the disk trust for [`TRUST`] from now on, not yet delivered.
    pub(crate) fn refreshing(&self) -> Request<RefreshHead> {
        let until_ms = self.device.now_ms() + TRUST.as_millis() as u64;
        let trust = Some(Trust { boot: self.control.boot(), until_ms });
        self.control.order(&RefreshHead { trust }, Bytes::new()).unwrap()
    }

    pub(crate) async fn revoke(&self, granted: &Granted) {
        let Capability { group, id, .. } = granted.capability;
        self.order(&RevokeHead { group, ids: Array(vec![id]) }).await.unwrap();
    }

    pub(crate) fn boot(&self) -> BootEpoch {
        self.control.boot()
    }

    /// A capability that is not minted yet: all is right with it.
    pub(crate) fn capability(&self, mode: Mode, extents: &[(u64, u64)]) -> Capability {
        let extents = extents.iter().map(|(offset, length)| extent(*offset, *length)).collect();
        Capability {
            volume: VOLUME,
            disk: DISK,
            boot: self.boot(),
            key: KEY,
            group: GROUP,
            id: CapabilityId(self.next_id.fetch_add(1, Ordering::Relaxed)),
            mode,
            expiry_ms: self.device.now_ms() + LIFE.as_millis() as u64,
            extents: Extents::new(extents).unwrap(),
        }
    }

    pub(crate) fn grant(&self, mode: Mode, extents: &[(u64, u64)]) -> Granted {
        Granted::mint(&master(), self.capability(mode, extents))
    }

    /// A session of a client, made under a capability.
    pub(crate) async fn session(&self, granted: &Granted) -> Session {
        self.hail(granted, larder_io::secret::random(), None).await.unwrap()
    }

    pub(crate) async fn hail(
        &self,
        granted: &Granted,
        nonce: [u8; 32],
        before: Option<&Session>,
    ) -> Res<Session> {
        let (call, hailing) = Hailing::client(granted, nonce, before);
        let done = self.call(&call).await.unwrap()?;
        Ok(hailing.welcomed(&done).unwrap())
    }

    pub(crate) async fn deliver<H: Head>(
        &self,
        (request, asked): Request<H>,
    ) -> Result<(H::Done, Bytes), AskError> {
        asked.answered(self.bring(&request).await)
    }

    /// Delivers a request to the disk, whoever sends it.
    pub(crate) async fn bring<H: Head>(&self, request: &Sealed<H>) -> Res<SealedReply<H>> {
        self.call(request).await.unwrap()
    }

    pub(crate) async fn read(
        &self,
        session: &Session,
        granted: &Granted,
        offset: u64,
        length: u32,
    ) -> Result<Bytes, AskError> {
        let capability = granted.capability.clone();
        let head = ReadHead { capability, offset, length };
        let asked = session.ask(&granted.secret, &head, Bytes::new()).unwrap();
        self.deliver(asked).await.map(|(_, data)| data)
    }

    pub(crate) async fn write(
        &self,
        session: &Session,
        granted: &Granted,
        offset: u64,
        data: &'static [u8],
    ) -> Result<(), AskError> {
        self.deliver(write(session, granted, offset, data)).await.map(drop)
    }

    pub(crate) async fn flush(&self, session: &Session, granted: &Granted) -> Result<(), AskError> {
        let head = FlushHead { capability: granted.capability.clone() };
        let asked = session.ask(&granted.secret, &head, Bytes::new()).unwrap();
        self.deliver(asked).await.map(drop)
    }

    /// How many requests the disk has refused so far, in all and for one reason.
    pub(crate) fn refused(&self, refusal: Refusal) -> (u64, u64) {
        let counts = self.device.counts();
        (counts.all().iter().map(|counted| counted.count).sum(), counts.get(refusal))
    }

    /// The same, as the disk reports it to the metadata server.
    pub(crate) async fn told(&self, refusal: Refusal) -> (u64, u64) {
        let refusals = self.order(&StatusHead {}).await.unwrap().refusals.0;
        let of_reason = refusals.iter().filter(|counted| counted.refusal == refusal);
        let of_reason = of_reason.map(|counted| counted.count).sum();
        (refusals.iter().map(|counted| counted.count).sum(), of_reason)
    }
}

/// A request to write, not yet brought to the disk.
pub(crate) fn write(
    session: &Session,
    granted: &Granted,
    offset: u64,
    data: &'static [u8],
) -> Request<WriteHead> {
    let head = WriteHead { capability: granted.capability.clone(), offset, stable: false };
    session.ask(&granted.secret, &head, Bytes::from_static(data)).unwrap()
}

async fn control(
    service: &Arc<Dispatcher<DiskService>>,
    owner: u64,
    nonce: [u8; 32],
) -> Res<Session> {
    let (hello, hailing) = Hailing::control(&master(), VOLUME, DISK, owner, nonce, None);
    let done = call(service, &hello).await.unwrap()?;
    Ok(hailing.welcomed(&done).unwrap())
}

async fn call<P: Procedure>(
    service: &Arc<Dispatcher<DiskService>>,
    args: &P,
) -> Result<P::Res, Outcome> {
    let message = encode_call(Xid(1), &Credential::None, args, Framing::Datagram);
    let address = SocketAddr::from(([127, 0, 0, 1], 999));
    let reply = Arc::clone(service).answer(address, message.to_bytes()).await;
    let mut reply = reply.expect("calls are answered");
    match ReplyHeader::decode(&mut reply).unwrap().outcome {
        Outcome::Success => Ok(P::Res::decode(&mut reply).unwrap()),
        other => Err(other),
    }
}
