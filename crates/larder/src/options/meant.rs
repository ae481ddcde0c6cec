//! Options as resolved from the command line: one value for everything that the stack needs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_class::RuleFile;

use super::remakes::Remakes;
use super::smb::SmbOptions;
use super::typed::{Typed, Value};
use crate::hoard::Intervals;

/// Everything that `-o` can say of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The flags with which the kernel mounts.
    pub(crate) flags: MountFlags,
    /// How long attributes and names may be trusted.
    pub(crate) timeouts: AttrTimeouts,
    /// Which lookups are remembered.
    pub(crate) lookup_cache: LookupCache,
    /// Whether an open asks the server for the file's version.
    pub(crate) close_to_open: bool,
    /// Whether every write goes to the server before it returns.
    pub(crate) sync: bool,
    /// The class of files for which nothing more specific is set; `None`: the usual one.
    pub(crate) class: Option<String>,
    /// Rules before those of the machine and the user.
    pub(crate) rules: Option<RuleFile>,
    /// Whether no other client changes names in the export: they may be made here first.
    pub(crate) exclusive: bool,
    /// Whether the mount works while the server is out of reach, including changes of names.
    pub(crate) offline: bool,
    /// How long written bytes may be unsent; `None`: the client's default.
    pub(crate) unsent_age_max: Option<Duration>,
    /// Most bytes per second of what is sent without a caller that waits for it.
    pub(crate) rate_max: Option<u64>,
    /// Most bytes of a READ; `None`: what the server prefers.
    pub(crate) read_max: Option<u32>,
    /// Most bytes of a WRITE; `None`: what the server prefers.
    pub(crate) write_max: Option<u32>,
    /// Connections to the server, 1 to 16.
    pub(crate) connections: u16,
    /// How messages travel.
    pub(crate) transport: Transport,
    /// Port of the NFS service, if it is not to be asked for.
    pub(crate) port: Option<u16>,
    /// Port of the MOUNT service, if it is not to be asked for.
    pub(crate) mount_port: Option<u16>,
    /// Whether to call from a port below 1024; `None`: if the caller is privileged.
    pub(crate) reserved_port: Option<bool>,
    /// Whether a mount may begin without the server: with what its cache holds, or by further
    /// attempts in the background.
    pub(crate) background: bool,
    /// How long a server that was never reached is tried until it answers.
    pub(crate) retry_max: Duration,
    /// What happens when the server does not answer.
    pub(crate) server_lost: ServerLost,
    /// Time to the first retransmission; `None`: the transport's default.
    pub(crate) timeout: Option<Duration>,
    /// Retransmissions before the server counts as lost; `None`: the transport's default.
    pub(crate) retransmissions: Option<u32>,
    /// The options that only SMB has.
    pub(crate) smb: SmbOptions,
    /// Files have extended attributes.
    pub(crate) xattrs: bool,
    /// When lost files are made again.
    pub(crate) remakes: Remakes,
    /// Locks of processes stay with this machine.
    pub(crate) no_locks: bool,
    /// The certificates of authorities for our own metadata server, if it is to use TLS.
    pub(crate) authorities: Option<PathBuf>,
    /// The options of the kernel's front door.
    pub(crate) front_door: FrontDoorOptions,
    /// The reference client: same protocol code and timeouts, no cache on disk.
    pub(crate) plain: bool,
    /// Whether the disk cache was declined (`nofsc`).
    pub(crate) no_disk_cache: bool,
    /// Whether the kernel may use files of the disk cache by itself.
    pub(crate) passthrough: bool,
    /// Limits of the disk cache.
    pub(crate) cache: CacheLimits,
    /// Most bytes of memory for buffers and tables; `None`: the client's default.
    pub(crate) memory_bytes_max: Option<u64>,
    /// Most bytes of files in memory; `None`: a share of the machine's.
    pub(crate) scratch_bytes_max: Option<u64>,
    pub(crate) fill: Fill,
    /// How often hoarded trees are looked after.
    pub(crate) hoard: Intervals,
}

/// The rules that an option names: the built-in ones for build trees, or a file.
pub(crate) fn rule_file(typed: &Path) -> RuleFile {
    match typed == Path::new("build") {
        true => RuleFile::Build,
        false => RuleFile::File(typed.to_owned()),
    }
}

/// The flags with which the kernel mounts (mount(8)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountFlags {
    /// Nothing may be written.
    pub(crate) read_only: bool,
    /// Set-uid bits mean nothing.
    pub(crate) no_suid: bool,
    /// Device files mean nothing.
    pub(crate) no_dev: bool,
    /// Nothing may be executed.
    pub(crate) no_exec: bool,
    /// Reading does not change access times.
    pub(crate) no_atime: bool,
    /// Whether users other than the mounting one may use it; `None`: if that is root.
    pub(crate) allow_other: Option<bool>,
}

/// How the kernel's requests are transported, and what happens if the process that gets them dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrontDoorOptions {
    /// The transport.
    pub(crate) transport: larder_fuse::Transport,
    /// Whether another process continues if the one that serves dies; `None`: where that is
    /// possible.
    pub(crate) survive: Option<bool>,
}

/// How long attributes may be trusted: between these bounds, longer the longer a file is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttrTimeouts {
    /// Shortest, for files.
    pub(crate) file_min: Duration,
    /// Longest, for files.
    pub(crate) file_max: Duration,
    /// Shortest, for directories.
    pub(crate) dir_min: Duration,
    /// Longest, for directories.
    pub(crate) dir_max: Duration,
}

impl AttrTimeouts {
    /// Nothing is trusted (`noac`).
    pub(crate) const NONE: AttrTimeouts = AttrTimeouts {
        file_min: Duration::ZERO,
        file_max: Duration::ZERO,
        dir_min: Duration::ZERO,
        dir_max: Duration::ZERO,
    };
}

/// Default attribute timeout of files, in seconds.
const FILE_SECONDS: u64 = 5;

/// Default attribute timeout of directories, in seconds.
const DIR_SECONDS: u64 = 30;

/// Minutes for which `bg` tries a server, unless `retry` says otherwise (nfs(5)): nearly a week.
const RETRY_MINUTES_BACKGROUND: u64 = 10_000;

/// Which partly read files are completed while the link is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// None.
    Off,
    /// Those up to a size that the client chooses.
    Idle,
    /// Those up to this size, in bytes.
    UpTo(u64),
}

/// Which lookups are remembered (nfs(5), `lookupcache`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupCache {
    /// Names, and that there is no such name.
    All,
    /// Names only.
    Positive,
    /// None.
    None,
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
}

/// What happens when the server does not answer (nfs(5), `hard`, `soft` and `softerr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerLost {
    /// Operations wait for it.
    Wait,
    /// Operations fail after the retransmissions. The default: nothing hangs.
    Fail,
}

/// Limits of the disk cache; `None`: the cache's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    /// Most bytes.
    pub(crate) bytes_max: Option<u64>,
    /// Most files.
    pub(crate) files_max: Option<u64>,
    /// Marks on the free space of its disk.
    pub(crate) free: Marks,
}

/// Marks of free space, in percent of the whole: `stop < cull < run` (cachefilesd.conf(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Culling ends when more than this is free.
    pub(crate) run: u8,
    /// Culling begins when less than this is free.
    pub(crate) cull: u8,
    /// Nothing more is stored when less than this is free.
    pub(crate) stop: u8,
}

impl Default for Marks {
    /// The defaults of cachefilesd.
    fn default() -> Marks {
        Marks { run: 10, cull: 7, stop: 3 }
    }
}

impl Options {
    /// Resolves the typed options together.
    ///
    /// # Errors
    /// A line for the user, if they contradict each other.
    pub(super) fn meant(typed: &[Typed]) -> Result<Options, String> {
        let typed = Last(typed);
        let transport = typed.transport();
        let no_attr_cache = typed.flag("noac", "ac", false);
        let options = Options {
            flags: typed.flags(),
            timeouts: if no_attr_cache { AttrTimeouts::NONE } else { typed.timeouts()? },
            lookup_cache: typed.lookup_cache(),
            close_to_open: typed.flag("cto", "nocto", true),
            // nfs(5): noac makes writes synchronous, since another client would otherwise see old
            // sizes.
            sync: no_attr_cache || typed.flag("sync", "async", false),
            class: typed.text("class"),
            exclusive: typed.last(&["exclusive"]).is_some(),
            offline: typed.last(&["offline"]).is_some(),
            rules: typed.text("rules").map(|typed| rule_file(Path::new(&typed))),
            unsent_age_max: typed.number("wback").map(Duration::from_secs),
            rate_max: typed.number("bwlimit"),
            read_max: typed.transfer_size("rsize")?,
            write_max: typed.transfer_size("wsize")?,
            connections: typed.small("nconnect").unwrap_or(1),
            transport,
            port: typed.small("port").filter(|port| *port != 0),
            mount_port: typed.small("mountport").filter(|port| *port != 0),
            reserved_port: typed
                .last(&["resvport", "noresvport"])
                .map(|(name, _)| name == "resvport"),
            background: typed.flag("bg", "fg", typed.last(&["offline"]).is_some()),
            retry_max: typed.retry_max(),
            server_lost: typed.server_lost(),
            timeout: typed.number("timeo").map(|tenths| Duration::from_millis(tenths * 100)),
            retransmissions: typed.small("retrans").map(u32::from),
            smb: SmbOptions::meant(&typed),
            xattrs: typed.flag("user_xattr", "nouser_xattr", false),
            remakes: typed.remakes(),
            no_locks: typed.flag("nobrl", "brl", false),
            authorities: typed.text("ca").map(PathBuf::from),
            front_door: typed.front_door()?,
            plain: typed.last(&["plain"]).is_some(),
            no_disk_cache: typed.flag("nofsc", "fsc", false),
            passthrough: typed.flag("passthrough", "nopassthrough", true),
            cache: typed.cache_limits()?,
            memory_bytes_max: typed.number("memory"),
            scratch_bytes_max: typed.number("scratch"),
            fill: typed.fill(),
            hoard: Intervals::of_seconds(typed.number("hoard"), typed.number("hoard_check")),
        };
        if transport == Transport::Udp && options.connections > 1 {
            return Err("options nconnect and udp contradict each other".to_owned());
        }
        Ok(options)
    }
}

/// The typed options, of which the last one of each kind counts.
pub(super) struct Last<'a>(&'a [Typed]);

impl<'a> Last<'a> {
    /// The last of the options that have one of these names.
    pub(super) fn last(&self, names: &[&str]) -> Option<(&'static str, &'a Value)> {
        let found = self.0.iter().rev().find(|typed| names.contains(&typed.name))?;
        Some((found.name, &found.value))
    }

    /// Whether `yes` came after `no`.
    pub(super) fn flag(&self, yes: &str, no: &str, default: bool) -> bool {
        self.last(&[yes, no]).map_or(default, |(name, _)| name == yes)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        match self.last(&[name])? {
            (_, Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// A number whose shape keeps it below 65,536.
    fn small(&self, name: &str) -> Option<u16> {
        self.number(name).map(|number| u16::try_from(number).unwrap_or(u16::MAX))
    }

    /// As in nfs(5) in the background. In the foreground nfs(5) has two minutes, where we fail at
    /// once.
    fn retry_max(&self) -> Duration {
        let minutes = self.number("retry");
        let default = if self.flag("bg", "fg", false) { RETRY_MINUTES_BACKGROUND } else { 0 };
        Duration::from_secs(60 * minutes.unwrap_or(default))
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.last(&[name])? {
            (_, Value::Text(text)) => Some(text.clone()),
            (_, Value::Word(word)) => Some((*word).to_owned()),
            _ => None,
        }
    }

    fn front_door(&self) -> Result<FrontDoorOptions, String> {
        let transport = match self.last(&["transport"]) {
            Some((_, Value::Word("dev"))) => larder_fuse::Transport::Device,
            Some((_, Value::Word("uring"))) => larder_fuse::Transport::Uring,
            _ => larder_fuse::Transport::Auto,
        };
        let survive = self.last(&["survive", "nosurvive"]).map(|(name, _)| name == "survive");
        if transport == larder_fuse::Transport::Uring && survive == Some(true) {
            return Err(
                "options survive and transport=uring contradict each other: what a process that dies \
                 had taken by io_uring is lost"
                    .to_owned(),
            );
        }
        Ok(FrontDoorOptions { transport, survive })
    }

    fn flags(&self) -> MountFlags {
        MountFlags {
            read_only: self.flag("ro", "rw", false),
            no_suid: self.flag("nosuid", "suid", false),
            no_dev: self.flag("nodev", "dev", false),
            no_exec: self.flag("noexec", "exec", false),
            no_atime: self
                .last(&["noatime", "atime", "relatime"])
                .is_some_and(|(name, _)| name == "noatime"),
            allow_other: self
                .last(&["allow_other", "noallow_other"])
                .map(|(name, _)| name == "allow_other"),
        }
    }

    fn timeouts(&self) -> Result<AttrTimeouts, String> {
        let (file_min, file_max) = self.timeout_pair("acregmin", "acregmax", FILE_SECONDS)?;
        let (dir_min, dir_max) = self.timeout_pair("acdirmin", "acdirmax", DIR_SECONDS)?;
        Ok(AttrTimeouts { file_min, file_max, dir_min, dir_max })
    }

    /// A pair of timeouts. If only one is given, the other follows it where the default would
    /// contradict it.
    fn timeout_pair(
        &self,
        min: &str,
        max: &str,
        default: u64,
    ) -> Result<(Duration, Duration), String> {
        let seconds = |name| match self.last(&[name, "actimeo"]) {
            Some((_, Value::Number(number))) => Some(*number),
            _ => None,
        };
        let (least, most) = match (seconds(min), seconds(max)) {
            (Some(least), Some(most)) if least > most => {
                return Err(format!("option {min}={least} is above {max}={most}"));
            }
            (Some(least), Some(most)) => (least, most),
            (Some(least), None) => (least, default.max(least)),
            (None, Some(most)) => (default.min(most), most),
            (None, None) => (default, default),
        };
        Ok((Duration::from_secs(least), Duration::from_secs(most)))
    }

    fn lookup_cache(&self) -> LookupCache {
        match self.last(&["lookupcache"]) {
            Some((_, Value::Word("none"))) => LookupCache::None,
            Some((_, Value::Word("pos" | "positive"))) => LookupCache::Positive,
            _ => LookupCache::All,
        }
    }

    fn fill(&self) -> Fill {
        match self.last(&["fill"]) {
            Some((_, Value::Word("off"))) => Fill::Off,
            Some((_, Value::Number(bytes))) => Fill::UpTo(*bytes),
            _ => Fill::Idle,
        }
    }

    fn transport(&self) -> Transport {
        match self.last(&["proto", "tcp", "udp"]) {
            Some(("udp", _) | (_, Value::Word("udp" | "udp6"))) => Transport::Udp,
            _ => Transport::Tcp,
        }
    }

    fn server_lost(&self) -> ServerLost {
        match self.last(&["hard", "soft", "softerr"]) {
            Some(("hard", _)) => ServerLost::Wait,
            _ => ServerLost::Fail,
        }
    }

    /// nfs(5): at least 1,024 bytes, rounded down to a multiple of that.
    fn transfer_size(&self, name: &str) -> Result<Option<u32>, String> {
        /// The most that the protocol and the requirements allow.
        const BYTES_MAX: u64 = 1 << 20;
        match self.number(name) {
            None => Ok(None),
            Some(bytes) if bytes < 1024 => Err(format!("option {name}={bytes}: at least 1024")),
            Some(bytes) => Ok(u32::try_from(bytes.min(BYTES_MAX) / 1024 * 1024).ok()),
        }
    }

    fn cache_limits(&self) -> Result<CacheLimits, String> {
        Ok(CacheLimits {
            bytes_max: self.number("cache_max"),
            files_max: self.number("cache_files"),
            free: self.marks("brun", "bcull", "bstop")?,
        })
    }

    fn marks(&self, run: &str, cull: &str, stop: &str) -> Result<Marks, String> {
        let default = Marks::default();
        let percent = |name, default: u8| match self.number(name) {
            Some(number) => u8::try_from(number).unwrap_or(default),
            None => default,
        };
        let marks = Marks {
            run: percent(run, default.run),
            cull: percent(cull, default.cull),
            stop: percent(stop, default.stop),
        };
        if marks.stop < marks.cull && marks.cull < marks.run {
            return Ok(marks);
        }
        let Marks { run: r, cull: c, stop: s } = marks;
        Err(format!("options {stop}={s}, {cull}={c}, {run}={r}: they must rise in this order"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn seconds(options: &Options) -> [u64; 4] {
        let AttrTimeouts { file_min, file_max, dir_min, dir_max } = options.timeouts;
        [file_min, file_max, dir_min, dir_max].map(|timeout| timeout.as_secs())
    }

    #[test]
    fn defaults() {
        let options = parse([]).unwrap();
        assert_eq!(seconds(&options), [5, 5, 30, 30]);
        assert_eq!(options.transport, Transport::Tcp);
        assert_eq!(options.server_lost, ServerLost::Fail);
        assert_eq!((options.timeout, options.retransmissions), (None, None));
        assert_eq!(options.lookup_cache, LookupCache::All);
        assert_eq!(options.fill, Fill::Idle);
        assert_eq!(parse(["fill=off"]).unwrap().fill, Fill::Off);
        assert_eq!(parse(["fill=1G"]).unwrap().fill, Fill::UpTo(1 << 30));
        assert!(options.close_to_open && !options.sync && !options.plain);
        assert_eq!(parse(["defaults,_netdev", "x-systemd.automount"]).unwrap(), options);
    }

    #[test]
    fn a_server_that_is_away_is_tried_as_nfs_5_has_it() {
        let minutes = |typed| parse([typed]).unwrap().retry_max.as_secs() / 60;
        let typed = ["", "bg", "bg,retry=3", "retry=3", "bg,fg"];
        assert_eq!(typed.map(minutes), [0, 10_000, 3, 3, 0]);
    }

    #[test]
    fn the_kernels_front_door() {
        let front_door = |typed| parse([typed]).map(|options| options.front_door);
        assert_eq!(front_door(""), Ok(FrontDoorOptions::default()));
        let chosen = front_door("transport=uring,nosurvive").unwrap();
        assert_eq!(chosen.transport, larder_fuse::Transport::Uring);
        assert_eq!(chosen.survive, Some(false));
        assert_eq!(front_door("nosurvive,survive").unwrap().survive, Some(true));
        assert!(front_door("survive,transport=uring").unwrap_err().contains("contradict"));
        assert!(front_door("transport=fast").is_err());
    }

    #[test]
    fn attribute_timeouts() {
        for (typed, expected) in [
            ("actimeo=7", [7, 7, 7, 7]),
            ("actimeo=7,acdirmax=9", [7, 7, 7, 9]),
            ("acdirmax=9,actimeo=7", [7, 7, 7, 7]),
            ("acregmin=10", [10, 10, 30, 30]),
            ("acregmax=2", [2, 2, 30, 30]),
            ("acregmin=3,acregmax=60,acdirmin=30,acdirmax=60", [3, 60, 30, 60]),
            ("noac", [0; 4]),
            ("actimeo=7,noac", [0; 4]),
            ("noac,ac", [5, 5, 30, 30]),
        ] {
            assert_eq!(seconds(&parse([typed]).unwrap()), expected, "{typed}");
        }
        // nfs(5): noac also writes synchronously.
        assert!(parse(["noac"]).unwrap().sync && !parse(["actimeo=0"]).unwrap().sync);
    }

    #[test]
    fn classes_and_rules_are_named() {
        assert_eq!(rule_file(Path::new("./build")), RuleFile::File("./build".into()));
        let options = parse(["class=critical,rules=build"]).unwrap();
        assert_eq!(options.class.as_deref(), Some("critical"));
        assert_eq!(options.rules, Some(RuleFile::Build));
        let file = parse(["rules=build,rules=/etc/rules.toml"]).unwrap().rules;
        assert_eq!(file, Some(RuleFile::File("/etc/rules.toml".into())));
        assert_eq!(parse(["ro"]).unwrap().rules, None);
    }

    #[test]
    fn the_last_one_counts() {
        assert!(!parse(["ro,rw"]).unwrap().flags.read_only);
        assert!(parse(["rw", "ro"]).unwrap().flags.read_only);
        assert_eq!(parse(["soft,hard"]).unwrap().server_lost, ServerLost::Wait);
        assert_eq!(parse(["hard,softerr"]).unwrap().server_lost, ServerLost::Fail);
        assert_eq!(parse(["udp,proto=tcp"]).unwrap().transport, Transport::Tcp);
        assert_eq!(parse(["proto=tcp,udp"]).unwrap().transport, Transport::Udp);
        assert!(parse(["cto,nocto"]).is_ok_and(|options| !options.close_to_open));
        assert!(parse(["nopassthrough,passthrough"]).is_ok_and(|options| options.passthrough));
    }

    #[test]
    fn transfer_sizes_are_rounded() {
        assert_eq!(parse(["rsize=5000"]).unwrap().read_max, Some(4096));
        assert_eq!(parse(["wsize=64M"]).unwrap().write_max, Some(1 << 20));
        assert!(parse(["rsize=512"]).is_err());
    }

    #[test]
    fn timeouts_are_tenths_of_a_second() {
        let options = parse(["timeo=50,retrans=1"]).unwrap();
        assert_eq!(options.timeout, Some(Duration::from_secs(5)));
        assert_eq!(options.retransmissions, Some(1));
    }

    #[test]
    fn cache_limits() {
        let options =
            parse(["cache_max=10G,cache_files=1000,brun=20%,bcull=10%,bstop=5%"]).unwrap();
        assert_eq!(
            (options.cache.bytes_max, options.cache.files_max),
            (Some(10 << 30), Some(1000))
        );
        assert_eq!(options.cache.free, Marks { run: 20, cull: 10, stop: 5 });
    }

    #[test]
    fn logins() {
        let smb = |typed| parse([typed]).unwrap().smb;
        assert_eq!(smb("ro"), SmbOptions::default());
        let has_xattrs = |typed| parse([typed]).unwrap().xattrs;
        assert!(has_xattrs("user_xattr") && !has_xattrs("user_xattr,nouser_xattr"));
        let ann = smb("user=ann,dom=OFFICE,uid=1000,file_mode=0640,seal,vers=3.1.1");
        assert_eq!((ann.username.as_deref(), ann.domain.as_deref()), (Some("ann"), Some("OFFICE")));
        assert_eq!((ann.uid, ann.gid, ann.file_mode), (Some(1000), None, Some(0o640)));
        assert!(ann.seal && !ann.sign && !ann.guest && !ann.no_leases);
        assert_eq!(ann.version_min.as_deref(), Some("3.1.1"));
        assert!(smb("sec=none").guest && smb("guest").guest && smb("sec=ntlmsspi").sign);
        assert!(smb("sec=krb5").kerberos && !smb("sec=krb5").sign && !smb("sec=ntlmssp").kerberos);
        let SmbOptions { kerberos, sign, guest, kdc, .. } = smb("sec=krb5i,kdc=kdc.test:8888");
        assert!(kerberos && sign && !guest && kdc.as_deref() == Some("kdc.test:8888"));
        assert!(smb("vers=default").version_min.is_none());
        let no_locks = |typed| parse([typed]).unwrap().no_locks;
        assert!(no_locks("nobrl") && !no_locks("ro") && !no_locks("nobrl,brl"));
        assert!(smb("nomfsymlinks").no_symlinks && !smb("mfsymlinks").no_symlinks);
        assert!(smb("nolease").no_leases && !smb("nolease,lease").no_leases);
    }

    #[test]
    fn contradictions_are_refused() {
        for typed in ["acregmin=9,acregmax=3", "bcull=20", "bstop=8", "udp,nconnect=2", "brun=0"] {
            assert!(parse([typed]).is_err(), "{typed}");
        }
    }
}
