//! A stand: an export of our server, or a share of Samba, and mounts of it, made as a user makes
//! them, by the binary's own commands, and removed when it is dropped.
//!
//! Every contestant has a directory of its own in the export, so that none profits from what
//! another has read. All mounts have the same memory, timeouts and attribute timeouts: everything
//! else is the default of `larder mount`, for all of them.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};

mod beside;
mod confined;
mod contestant;
mod ganesha;
mod memory;
mod mount;
mod passthrough;
mod run_dir;
mod served;
mod slow;
mod volume;

use beside::Tmpfs;
pub use beside::{Local, locals};
pub use confined::Confinement;
use confined::{Disk, Group};
pub use contestant::{Contestant, LARDER, PLAIN, Server, contestants};
use ganesha::{Ganesha, Renewal};
use memory::MemoryVolume;
use mount::Mount;
use passthrough::Passthrough;
use run_dir::RunDir;
use served::{Export, How, spawn_at};
pub use served::{Names, Protocol};
use slow::SlowExt4;
pub use volume::Parts;
use volume::{Endpoint, Volume};

use crate::link::netns::Netns;
use crate::link::proxy::{self, Proxy};
use crate::link::{Shape, measure};
use crate::process;
use crate::record::Link;
use crate::rpc::Counter;
use crate::target::{Target, mount_of};

/// Where runs have their directories if no other place is wanted. On a real disk: /tmp may be
/// memory, and may be closed to other users.
pub const RUNS: &str = "/var/tmp";
/// Size of a disk that is made for a file system of this machine, in bytes: a sparse file.
const LOCAL_DISK_BYTES: u64 = 4 << 30;

/// Where the server listens in a network namespace of its own.
const PORT: u16 = 12049;
/// The same, for the server that answers changes of names before they are on its disk.
const ASYNCHRONOUS_PORT: u16 = 12050;
/// Where the volume with a memory disk listens, and at the two ports behind it.
const MEMORY_PORT: u16 = 12060;
/// Where the first volume listens; each takes as many ports as it has servers.
const VOLUME_PORT: u16 = 12100;

/// Memory of each of our mounts, if its contestant has no other.
const MEMORY: &str = "memory=256M";

/// Optional parts of a stand.
#[derive(Clone, Debug, Default)]
pub struct Wants {
    /// Where the run has its directory, with servers and caches, if not in [`RUNS`].
    pub runs: Option<PathBuf>,
    /// Little memory and a slow disk for its servers.
    pub confinement: Option<Confinement>,
    /// How long each operation of our server's disk takes, if not the machine's own time.
    pub disk_latency: Option<Duration>,
    /// A network namespace for each client. Not available behind a shaped link, or without root.
    pub own_namespaces: bool,
}

/// An export and its mounts.
#[derive(Debug)]
pub struct Stand {
    larder: PathBuf,
    protocol: Protocol,
    /// Every client gets a network namespace of its own.
    own_namespaces: bool,
    // Dropped in this order: mounts, servers, their groups, link, disk, files.
    mounts: Vec<Arc<Mount>>,
    export: Export,
    asynchronous: Option<Export>,
    ganeshas: Vec<(&'static str, Ganesha)>,
    volumes: Vec<(&'static str, Volume)>,
    memory: Option<MemoryVolume>,
    far: Option<(Proxy, Export)>,
    groups: Vec<Group>,
    way: Way,
    shape: Shape,
    link: Link,
    disk: Option<Disk>,
    disk_latency: Option<Duration>,
    passthrough: Option<Passthrough>,
    slow_ext4: Option<SlowExt4>,
    tmpfs: Option<Tmpfs>,
    unconfined: Option<String>,
    top: RunDir,
}

/// How far away the server is.
#[derive(Debug)]
enum Way {
    /// As far as loopback.
    Loopback,
    /// Behind a link that the kernel shapes.
    Netns(Netns),
    /// Behind a program that delays and loses.
    Proxy(Proxy),
}

impl Stand {
    /// Exports an empty directory by `protocol` behind a link of this shape, and measures the link.
    /// As root the kernel holds the rate (a network namespace); a delay, a loss, or not being root
    /// take the proxy. Where it is to be confined and that cannot be done here,
    /// [`Stand::unconfined`] says why.
    ///
    /// # Errors
    /// If the link cannot be made, or the server does not come up.
    pub fn new(larder: &Path, protocol: Protocol, shape: Shape, wants: Wants) -> Result<Stand> {
        let Wants { runs, confinement, disk_latency, own_namespaces } = wants;
        let top = RunDir::create(runs.as_deref().unwrap_or(Path::new(RUNS)))?;
        let confined = confinement.map(|confinement| {
            let disk = Disk::create(top.path(), confinement)?;
            Ok::<_, anyhow::Error>((disk.group()?, disk))
        });
        let (groups, disk, unconfined) = match confined {
            Some(Ok((group, disk))) => (vec![group], Some(disk), None),
            Some(Err(reason)) => (Vec::new(), None, Some(format!("{reason:#}"))),
            None => (Vec::new(), None, None),
        };
        let dir = disk.as_ref().map_or(top.path(), Disk::mountpoint).join("export");
        fs::create_dir(&dir)?;
        fs::create_dir(top.path().join("local"))?;
        let start = |address: SocketAddr, netns: Option<&Netns>| match protocol {
            Protocol::Nfs => {
                let names = Names::Durable;
                let how = How { names, disk_latency, group: groups.first() };
                Export::nfs(larder, &dir, address, netns, how)
            }
            Protocol::Smb => {
                let state = top.path().join("samba");
                Export::smb(&state, &dir, address, netns, groups.first())
            }
        };
        let rate_alone = shape.delay.is_zero() && shape.loss == 0.0;
        let here = || -> Result<SocketAddr> { Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?) };
        let is_root = rustix::process::geteuid().is_root();
        let (way, link, export) = if own_namespaces && is_root && shape == Shape::default() {
            let netns = Netns::create(None)?;
            let link = measure::netns(&netns)?;
            let export = start((netns.inside(), PORT).into(), Some(&netns))?;
            (Way::Netns(netns), link, export)
        } else if shape == Shape::default() {
            (Way::Loopback, measure::loopback()?, start(here()?, None)?)
        } else if rate_alone && is_root {
            let netns = Netns::create(shape.rate_bits_per_s)?;
            let link = measure::netns(&netns)?;
            let export = start((netns.inside(), PORT).into(), Some(&netns))?;
            (Way::Netns(netns), link, export)
        } else {
            let export = start(here()?, None)?;
            let proxy = Proxy::start(&proxy::Options::to(export.address, shape))?;
            (Way::Proxy(proxy), measure::proxy(shape)?, export)
        };
        Ok(Stand {
            larder: larder.to_path_buf(),
            protocol,
            own_namespaces: own_namespaces && is_root && shape == Shape::default(),
            mounts: Vec::new(),
            export,
            asynchronous: None,
            ganeshas: Vec::new(),
            volumes: Vec::new(),
            memory: None,
            far: None,
            groups,
            way,
            shape,
            link,
            disk,
            disk_latency,
            passthrough: None,
            slow_ext4: None,
            tmpfs: None,
            unconfined,
            top,
        })
    }

    /// Why the server is not confined although it was to be.
    pub fn unconfined(&self) -> Option<&str> {
        self.unconfined.as_deref()
    }

    /// The nfs-ganesha of a contestant, which is started when it is first requested. It is reached
    /// over a link of its own, without a limit.
    fn ganesha(&mut self, name: &'static str, names: Names) -> Result<&Ganesha> {
        if self.ganesha_of(name).is_none() {
            ganesha::is_installed()?;
            let group = |disk: &Disk| disk.growing_group(ganesha::OWN);
            let group = self.disk.as_ref().map(group).transpose()?;
            let at = self.disk.as_ref().map_or(self.top.path(), Disk::mountpoint);
            // Its configuration has no way to write a space.
            let word = name.replace(' ', "-");
            let (state, dir) = (self.top.path().join("servers").join(&word), at.join(&word));
            let server = Ganesha::start(&state, &dir, names, group.as_ref());
            self.groups.extend(group);
            self.ganeshas.push((name, server?));
        }
        Ok(self.ganesha_of(name).expect("just started"))
    }

    fn ganesha_of(&self, name: &str) -> Option<&Ganesha> {
        self.ganeshas.iter().find(|(of, _)| *of == name).map(|(_, ganesha)| ganesha)
    }

    /// Our server of a directory of its own, with names that may not be on the disk yet when it
    /// answers. It is started when it is first requested.
    fn asynchronous(&mut self) -> Result<&Export> {
        if self.asynchronous.is_none() {
            let (address, netns) = match &self.way {
                Way::Loopback => (Ipv4Addr::LOCALHOST, None),
                Way::Netns(netns) => (netns.inside(), Some(netns)),
                Way::Proxy(_) => bail!("one server alone is behind the proxy"),
            };
            let at = self.disk.as_ref().map_or(self.top.path(), Disk::mountpoint);
            let dir = at.join("asynchronous");
            fs::create_dir(&dir)?;
            let (names, disk_latency) = (Names::Asynchronous, self.disk_latency);
            let how = How { names, disk_latency, group: self.groups.first() };
            let address = (address, ASYNCHRONOUS_PORT).into();
            self.asynchronous = Some(Export::nfs(&self.larder, &dir, address, netns, how)?);
        }
        Ok(self.asynchronous.as_ref().expect("just started"))
    }

    /// The volume of a contestant, which is started when it is first requested.
    fn volume(&mut self, name: &'static str, parts: Parts) -> Result<&Volume> {
        if let Some(at) = self.volumes.iter().position(|(of, _)| *of == name) {
            return Ok(&self.volumes[at].1);
        }
        let (address, netns) = match &self.way {
            Way::Loopback => (Ipv4Addr::LOCALHOST, None),
            Way::Netns(netns) => (netns.inside(), Some(netns)),
            Way::Proxy(_) => bail!("the disks of a volume are not behind the proxy"),
        };
        let port = self.volumes.iter().map(|(_, volume)| volume.port_behind()).max();
        let address = (address, port.unwrap_or(VOLUME_PORT)).into();
        let dir = self.top.path().join("volumes").join(name.replace(' ', "-"));
        let volume = Volume::start(&self.larder, &dir, parts, address, netns)?;
        self.volumes.push((name, volume));
        Ok(&self.volumes.last().expect("just started").1)
    }

    /// The volume with a memory disk, which is started when it is first requested.
    fn memory(&mut self, size: &str) -> Result<&MemoryVolume> {
        if self.memory.is_none() {
            let (address, netns) = match &self.way {
                Way::Loopback => (Ipv4Addr::LOCALHOST, None),
                Way::Netns(netns) => (netns.inside(), Some(netns)),
                Way::Proxy(_) => bail!("the disks of a volume are not behind the proxy"),
            };
            let dir = self.top.path().join("volumes").join("memory");
            let address = (address, MEMORY_PORT).into();
            let started =
                MemoryVolume::start(&self.larder, &dir, size, self.disk_latency, address, netns);
            self.memory = Some(started?);
        }
        Ok(self.memory.as_ref().expect("just started"))
    }

    /// Our server of a directory of its own behind a proxy, which are started when they are first
    /// requested. They and their clients are where we are.
    fn far(&mut self, delay: Duration) -> Result<&(Proxy, Export)> {
        if self.far.is_none() {
            let dir = self.top.path().join("far");
            fs::create_dir(&dir)?;
            let (names, disk_latency) = (Names::Durable, self.disk_latency);
            let how = How { names, disk_latency, group: self.groups.first() };
            let here = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let export = Export::nfs(&self.larder, &dir, here, None, how)?;
            let shape = Shape { delay, ..Shape::default() };
            let proxy = Proxy::start(&proxy::Options::to(export.address, shape))?;
            self.far = Some((proxy, export));
        }
        Ok(self.far.as_ref().expect("just started"))
    }

    /// Where clients reach the server.
    pub fn address(&self) -> SocketAddr {
        match &self.way {
            Way::Loopback | Way::Netns(_) => self.export.address,
            Way::Proxy(proxy) => proxy.address(),
        }
    }

    /// How its directory is exported.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The link, as asked for and as measured before anything used it.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Starts a third-party server beside ours.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        // A group of its own: Ctrl-C ends the run, and the run ends its servers, in this order.
        spawn_at(command.process_group(0), self.netns())
    }

    /// The network namespace in which the server is, if it is in one.
    pub fn netns(&self) -> Option<&Netns> {
        match &self.way {
            Way::Netns(netns) => Some(netns),
            Way::Loopback | Way::Proxy(_) => None,
        }
    }

    /// The shape of the proxy behind which the server is, if it is behind one: a third-party server
    /// needs one of its own.
    pub fn proxied(&self) -> Option<Shape> {
        match &self.way {
            Way::Proxy(_) => Some(self.shape),
            Way::Loopback | Way::Netns(_) => None,
        }
    }

    /// The directory that is exported, on the server.
    pub fn exported(&self) -> &Path {
        &self.export.dir
    }

    /// A fresh directory on the client's disk, for a mountpoint or a cache.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn home(&self, name: &str) -> Result<PathBuf> {
        let home = self.top.path().join(name);
        fs::create_dir_all(&home)?;
        Ok(home)
    }

    /// Mounts for a contestant, with an empty cache: once for each of its clients, at least once.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn mount(&mut self, contestant: &Contestant, clients: u32) -> Result<Target> {
        let served = self.served(contestant)?;
        let mounts: Vec<Arc<Mount>> = (0..clients.max(1))
            .map(|number| self.client(contestant, &served, number))
            .collect::<Result<_>>()?;
        let first = mounts[0].clone();
        let dir = |mount: &Arc<Mount>| mount.mountpoint.join(contestant.name);
        let mut target = Target::new(contestant.name, &dir(&first));
        target.clients = mounts[1..].iter().map(dir).collect();
        target.back = served.exported.map(|exported| exported.join(contestant.name));
        fs::create_dir_all(target.back.as_ref().unwrap_or(&target.dir))?;
        let mountpoints: Vec<PathBuf> = mounts.iter().map(|one| one.mountpoint.clone()).collect();
        target.counter = Counter::Daemon { larder: self.larder.clone(), mountpoints };
        let caches = mounts.iter().filter_map(|mount| Some(mount.cache.as_ref()?.join("data")));
        target.disks = target.back.iter().cloned().chain(served.disks).chain(caches).collect();
        target.options =
            format!("{} -o {}", mount_of(&target.dir).unwrap_or_default(), first.options);
        target.tests = contestant.tests;
        target.changes_wait = contestant.lets_changes_wait();
        let (processes, asked) = (served.processes, served.asked);
        let (measured, larder) = (mounts.clone(), self.larder.clone());
        target.costs = Some(Arc::new(move || {
            let servers = processes.iter().map(|(name, id)| (*name, process::cpu_of_group_s(*id)));
            let servers = servers.chain(asked.iter().flat_map(|disk| volume::told(&larder, *disk)));
            let mut costs = BTreeMap::new();
            for (name, cost) in servers.chain(measured.iter().flat_map(|mount| mount.costs())) {
                *costs.entry(name).or_default() += cost;
            }
            costs.into_iter().map(|(name, cost)| (name.to_owned(), cost)).collect()
        }));
        let renewal = served.renewal;
        target.restart = Some(Arc::new(move |clients, empty| {
            renewal.as_ref().map_or(Ok(()), Renewal::renew)?;
            mounts.iter().take(clients).try_for_each(|mount| mount.restart(empty))
        }));
        Ok(target)
    }

    /// Mounts for one client.
    fn client(
        &mut self,
        contestant: &Contestant,
        served: &Served,
        number: u32,
    ) -> Result<Arc<Mount>> {
        let home = match number {
            0 => self.home(contestant.name)?,
            number => self.home(&format!("{}-{number}", contestant.name))?,
        };
        fs::create_dir_all(home.join("mnt"))?;
        if contestant.options.contains(&"exclusive") {
            // Each works in a directory of its own, so each is the only writer of its names; larder
            // sees one export, and would refuse the second of a user.
            process::make_runtime_dir(&home.join("mnt"))?;
        }
        let mut options = served.options.clone();
        if !contestant.options.iter().any(|option| option.starts_with("memory=")) {
            options.push(MEMORY.to_owned());
        }
        options.extend(contestant.options.iter().map(ToString::to_string));
        if !contestant.cached {
            options.push("plain".to_owned());
        }
        let server = match contestant.server {
            Server::Ganesha(_) => self.ganesha_of(contestant.name).map(|ganesha| &ganesha.netns),
            Server::Own | Server::Asynchronous | Server::Volume(_) | Server::Memory(_) => {
                self.netns()
            }
            Server::Far(_) => None,
        };
        let netns = match server.filter(|_| self.own_namespaces) {
            Some(server) => {
                let netns = Netns::create(None)?;
                netns.connect_to(server)?;
                Some(netns)
            }
            None => None,
        };
        let cache = contestant.cached.then(|| home.join("cache"));
        let (larder, source) = (self.larder.clone(), served.source.clone());
        let mountpoint = home.join("mnt");
        let mount = Mount::new(larder, source, mountpoint, cache, options.join(","), netns);
        let mount = Arc::new(mount);
        self.mounts.push(mount.clone());
        mount.mount()?;
        Ok(mount)
    }

    /// The server of a contestant, which runs from now on.
    fn served(&mut self, contestant: &Contestant) -> Result<Served> {
        match contestant.server {
            Server::Own => Ok(Served::export(self.protocol, self.address(), &self.export)),
            Server::Asynchronous => {
                let protocol = self.protocol;
                let export = self.asynchronous()?;
                Ok(Served::export(protocol, export.address, export))
            }
            Server::Ganesha(names) => {
                let is_small = self.disk.is_some();
                let ganesha = self.ganesha(contestant.name, names)?;
                Ok(Served {
                    renewal: is_small.then(|| ganesha.renewal()),
                    source: ganesha.source(),
                    options: vec![Ganesha::option()],
                    exported: Some(ganesha.dir.clone()),
                    disks: None,
                    processes: vec![("server_cpu_s", ganesha.pid())],
                    asked: Vec::new(),
                })
            }
            Server::Memory(size) => {
                let volume = self.memory(size)?;
                let processes = vec![("server_cpu_s", volume.pid())];
                Ok(Served::volume(&volume.endpoint, &volume.dir, processes))
            }
            Server::Far(delay) => {
                let protocol = self.protocol;
                let (proxy, export) = self.far(delay)?;
                Ok(Served::export(protocol, proxy.address(), export))
            }
            Server::Volume(parts) => {
                let volume = self.volume(contestant.name, parts)?;
                let served = Served::volume(&volume.endpoint, &volume.dir, volume.processes());
                Ok(Served { asked: volume.disk_addresses(), ..served })
            }
        }
    }

    /// A file system of this machine, made for the run if it has to be; if it is mounted for each
    /// client, so many times.
    ///
    /// # Errors
    /// If it cannot be made here.
    pub fn beside(&mut self, local: Local, clients: u32) -> Result<Target> {
        match local {
            Local::Disk => Ok(Target { tests: local.tests(), ..self.local() }),
            Local::Synchronous => {
                let latency = self.disk_latency.unwrap_or_default();
                let (larder, top) = (&self.larder, self.top.path());
                let slow = SlowExt4::create(larder, top, LOCAL_DISK_BYTES, latency)?;
                let mut target = beside::target(local, &slow.mountpoint());
                target.disks = vec![slow.mountpoint()];
                self.slow_ext4 = Some(slow);
                Ok(target)
            }
            Local::Memory => {
                // All of it is in memory, before a test and after it, so it has no disks.
                let tmpfs = Tmpfs::create(self.top.path(), local.name())?;
                let target = beside::target(local, tmpfs.mountpoint());
                self.tmpfs = Some(tmpfs);
                Ok(target)
            }
            Local::Passthrough => {
                let passthrough = Passthrough::start(&self.larder, self.top.path(), clients)?;
                let target = passthrough.target();
                self.passthrough = Some(passthrough);
                Ok(target)
            }
        }
    }

    /// The local disk on which the server and the caches are.
    fn local(&self) -> Target {
        let dir = self.top.path().join("local");
        let mut target = Target::new("local", &dir);
        target.options = mount_of(&dir).unwrap_or_default();
        target.disks = vec![dir];
        target
    }
}

/// What a contestant mounts.
struct Served {
    source: String,
    /// Options that it takes.
    options: Vec<String>,
    /// The directory that is exported, if the server has one.
    exported: Option<PathBuf>,
    /// Further directories with its bytes.
    disks: Option<PathBuf>,
    /// Starts it again before each round.
    renewal: Option<Renewal>,
    /// The label for its processes' time, and the leaders of their groups.
    processes: Vec<(&'static str, u32)>,
    /// Disks that are asked what they were told.
    asked: Vec<SocketAddr>,
}

impl Served {
    /// Our export, reached at `address`.
    fn export(protocol: Protocol, address: SocketAddr, export: &Export) -> Served {
        Served {
            source: protocol.source(address),
            options: protocol.options().iter().map(ToString::to_string).collect(),
            exported: Some(export.dir.clone()),
            disks: None,
            renewal: None,
            processes: vec![("server_cpu_s", export.pid())],
            asked: Vec::new(),
        }
    }

    /// A volume whose bytes are in `dir`.
    fn volume(endpoint: &Endpoint, dir: &Path, processes: Vec<(&'static str, u32)>) -> Served {
        Served {
            source: endpoint.source(),
            options: endpoint.options(),
            exported: None,
            disks: Some(dir.to_owned()),
            renewal: None,
            processes,
            asked: Vec::new(),
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        for mount in &self.mounts {
            if let Err(error) = mount.unmount() {
                eprintln!("larder: {error:#}");
            }
        }
    }
}
