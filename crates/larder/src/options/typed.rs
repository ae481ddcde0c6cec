//! Options as typed: names with values.

use super::nearest::nearest;
use super::size::{parse_limit, parse_size};

/// An option, with its value in the shape that its name asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Typed {
    /// The name in its first spelling: `vers` for `nfsvers`.
    pub(super) name: &'static str,
    pub(super) value: Value,
}

/// Value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// There is none.
    Flag,
    /// A whole number, a size in bytes or a percentage.
    Number(u64),
    /// A word that the option knows.
    Word(&'static str),
    /// Anything.
    Text(String),
}

/// The value that an option takes.
#[derive(Clone, Copy)]
enum Shape {
    Flag,
    /// Between these, both included.
    Number(u64, u64),
    /// In bytes, with a suffix.
    Size,
    /// 0 to 99, with or without a percent sign.
    Percent,
    Words(&'static [&'static str]),
    /// One of these words, or none.
    MayBe(&'static [&'static str]),
    /// One of these words, or a size in bytes.
    Limit(&'static [&'static str]),
    /// Bytes per second, or `off`.
    Rate,
    /// Permission bits, in octal.
    Mode,
    /// Anything but nothing; with an example.
    Text(&'static str),
}

use Shape::{Flag, Limit, MayBe, Mode, Number, Percent, Rate, Size, Text, Words};

use crate::source::Protocol;

/// Longest attribute timeout, in seconds: a year.
const AC_SECONDS_MAX: u64 = 366 * 24 * 3600;

/// Longest time between two looks at hoarded trees, in seconds: 30 days.
const HOARD_SECONDS_MAX: u64 = 30 * 24 * 3600;

/// Longest time between two comparisons of hoarded files with their checksums, in seconds: a year.
const HOARD_CHECK_SECONDS_MAX: u64 = 366 * 24 * 3600;

/// Longest time that written bytes may be unsent, in seconds: a day.
const WBACK_SECONDS_MAX: u64 = 24 * 3600;

/// Highest user or group id.
const ID_MAX: u64 = u32::MAX as u64 - 1;

/// A minute is nfs(5)'s default; an hour is long enough for anyone.
const TIMEO_DECISECONDS_MAX: u64 = 36_000;

/// Most minutes for which a server is tried: a year.
const RETRY_MINUTES_MAX: u64 = 366 * 24 * 60;

/// Every option, as nfs(5), mount(8) and cachefilesd.conf(5) name it.
const KNOWN: &[(&str, Shape)] = &[
    ("ro", Flag),
    ("rw", Flag),
    ("ac", Flag),
    ("noac", Flag),
    ("actimeo", Number(0, AC_SECONDS_MAX)),
    ("acregmin", Number(0, AC_SECONDS_MAX)),
    ("acregmax", Number(0, AC_SECONDS_MAX)),
    ("acdirmin", Number(0, AC_SECONDS_MAX)),
    ("acdirmax", Number(0, AC_SECONDS_MAX)),
    ("lookupcache", Words(&["all", "none", "pos", "positive"])),
    ("cto", Flag),
    ("nocto", Flag),
    ("rsize", Size),
    ("wsize", Size),
    ("nconnect", Number(1, 16)),
    ("proto", Words(&["tcp", "udp", "tcp6", "udp6"])),
    ("tcp", Flag),
    ("udp", Flag),
    ("port", Number(0, 65_535)),
    ("mountport", Number(0, 65_535)),
    ("vers", Words(&["3", "3.0", "2.1", "3.0.2", "3.02", "3.1.1", "3.11", "default"])),
    ("bg", Flag),
    ("fg", Flag),
    ("retry", Number(0, RETRY_MINUTES_MAX)),
    ("hard", Flag),
    ("soft", Flag),
    ("softerr", Flag),
    ("timeo", Number(1, TIMEO_DECISECONDS_MAX)),
    ("retrans", Number(0, 100)),
    ("resvport", Flag),
    ("noresvport", Flag),
    ("sec", Words(&["sys", "ntlmssp", "ntlmsspi", "krb5", "krb5i", "none"])),
    ("nolock", Flag),
    ("fsc", Flag),
    ("nofsc", Flag),
    ("survive", Flag),
    ("nosurvive", Flag),
    ("transport", Words(&["auto", "dev", "uring"])),
    ("passthrough", Flag),
    ("nopassthrough", Flag),
    ("plain", Flag),
    ("sync", Flag),
    ("async", Flag),
    ("class", Text("generated")),
    ("rules", Text("build")),
    ("exclusive", Flag),
    ("offline", Flag),
    ("wback", Number(1, WBACK_SECONDS_MAX)),
    ("bwlimit", Rate),
    ("atime", Flag),
    ("noatime", Flag),
    ("relatime", Flag),
    ("suid", Flag),
    ("nosuid", Flag),
    ("dev", Flag),
    ("nodev", Flag),
    ("exec", Flag),
    ("noexec", Flag),
    ("allow_other", Flag),
    ("noallow_other", Flag),
    ("username", Text("ann")),
    ("domain", Text("OFFICE")),
    ("credentials", Text("/etc/larder/share.credentials")),
    ("kdc", Text("kdc.office.example")),
    ("ca", Text("/etc/larder/ca.pem")),
    ("guest", Flag),
    ("uid", Number(0, ID_MAX)),
    ("gid", Number(0, ID_MAX)),
    ("file_mode", Mode),
    ("dir_mode", Mode),
    ("seal", Flag),
    ("sign", Flag),
    ("lease", Flag),
    ("nolease", Flag),
    ("brl", Flag),
    ("nobrl", Flag),
    ("mfsymlinks", Flag),
    ("nomfsymlinks", Flag),
    ("rebuild", MayBe(&["now"])),
    ("norebuild", Flag),
    ("user_xattr", Flag),
    ("nouser_xattr", Flag),
    ("fill", Limit(&["off", "idle"])),
    ("hoard", Number(0, HOARD_SECONDS_MAX)),
    ("hoard_check", Number(0, HOARD_CHECK_SECONDS_MAX)),
    ("cache_max", Size),
    ("cache_files", Number(1, u64::MAX)),
    ("brun", Percent),
    ("bcull", Percent),
    ("bstop", Percent),
    ("memory", Size),
    ("scratch", Size),
    // For mount(8), systemd and fstab(5); they ask nothing of us.
    ("defaults", Flag),
    ("_netdev", Flag),
    ("auto", Flag),
    ("noauto", Flag),
    ("nofail", Flag),
    ("user", Flag),
    ("nouser", Flag),
    ("users", Flag),
    ("nousers", Flag),
    ("owner", Flag),
    ("group", Flag),
];

/// Second spellings.
const ALIASES: &[(&str, &str)] =
    &[("nfsvers", "vers"), ("cred", "credentials"), ("dom", "domain"), ("workgroup", "domain")];

/// Options that mean something to these protocols only.
const ONLY: &[(Protocol, &[&str])] = &[
    (
        Protocol::Nfs,
        &[
            "mountport",
            "proto",
            "tcp",
            "udp",
            "retrans",
            "resvport",
            "noresvport",
            "nolock",
            "exclusive",
            "offline",
        ],
    ),
    (
        Protocol::Smb,
        &[
            "username",
            "domain",
            "credentials",
            "kdc",
            "guest",
            "uid",
            "gid",
            "file_mode",
            "dir_mode",
            "seal",
            "sign",
            "lease",
            "nolease",
            "brl",
            "nobrl",
            "mfsymlinks",
            "nomfsymlinks",
        ],
    ),
    (Protocol::Native, &["ca", "brl", "nobrl", "exclusive"]),
];

/// Words of options that have others for each protocol.
const ONLY_WORDS: &[(Protocol, &str, &[&str])] = &[
    (Protocol::Nfs, "vers", &["3", "3.0"]),
    (Protocol::Nfs, "sec", &["sys"]),
    (Protocol::Smb, "sec", &["ntlmssp", "ntlmsspi", "krb5", "krb5i", "none"]),
    (Protocol::Native, "vers", &["default"]),
    (Protocol::Native, "sec", &["sys"]),
];

/// Options with which a secret would be typed where every user can read it.
const SECRETS: [&str; 3] = ["password", "pass", "password2"];

/// Options for other programs begin with these.
const FOREIGN_PREFIXES: [&str; 2] = ["x-", "X-"];

impl Typed {
    /// Reads `name` or `name=value`.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn parse(typed: &str) -> Result<Typed, String> {
        let (name, value) = match typed.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (typed.trim(), None),
        };
        if FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            return Ok(Typed { name: "defaults", value: Value::Flag });
        }
        if SECRETS.contains(&name) {
            return Err(format!(
                "option {name} would show the password in the list of processes: use \
                 credentials=FILE, the variable PASSWD, or let it be asked for"
            ));
        }
        // mount(8) has it without a value, mount.cifs(8) with one.
        let name = if name == "user" && value.is_some() { "username" } else { name };
        let first =
            ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, first)| first);
        let Some((known, shape)) = KNOWN.iter().find(|(known, _)| *known == first) else {
            return Err(unknown(name));
        };
        Ok(Typed { name: known, value: shape.read(name, value)? })
    }
}

impl Typed {
    /// Refuses options that have no meaning for `protocol`.
    ///
    /// # Errors
    /// A line for the user.
    pub(crate) fn check(&self, protocol: Protocol) -> Result<(), String> {
        let Typed { name, value } = self;
        let mut to = ONLY.iter().filter(|(_, names)| names.contains(name)).peekable();
        if to.peek().is_some() && !to.any(|(only, _)| *only == protocol) {
            return Err(format!("option {name} means nothing to {protocol}"));
        }
        let words = ONLY_WORDS.iter().find(|(only, named, _)| (*only, *named) == (protocol, *name));
        match (words, value) {
            (Some((_, _, words)), Value::Word(word)) if !words.contains(word) => {
                Err(format!("option {name}={word}: for {protocol} it is {}", words.join(" or ")))
            }
            _ => Ok(()),
        }
    }
}

fn unknown(name: &str) -> String {
    let known = KNOWN.iter().chain(&[]).map(|(known, _)| *known);
    let known = known.chain(ALIASES.iter().map(|(alias, _)| *alias));
    match nearest(name, known).as_slice() {
        [] => format!("unknown option {name:?}; `larder mount --help` lists them"),
        near => format!("unknown option {name:?}: did you mean {}?", near.join(" or ")),
    }
}

impl Shape {
    fn read(self, name: &str, value: Option<&str>) -> Result<Value, String> {
        let (Some(value), false) = (value, matches!(self, Flag)) else {
            return match (self, value) {
                (Flag | MayBe(_), None) => Ok(Value::Flag),
                (Flag, Some(_)) => Err(format!("option {name} takes no value")),
                _ => Err(format!("option {name} needs a value: {name}={}", self.example())),
            };
        };
        let bad = |what: String| format!("option {name}={value}: {what}");
        match self {
            Flag => Ok(Value::Flag),
            Number(least, most) => match value.parse() {
                Ok(number) if (least..=most).contains(&number) => Ok(Value::Number(number)),
                _ => Err(bad(format!("not a number from {least} to {most}"))),
            },
            Size => parse_size(value).map(Value::Number).map_err(bad),
            Percent => match value.strip_suffix('%').unwrap_or(value).parse() {
                Ok(number @ 0..=99) => Ok(Value::Number(number)),
                _ => Err(bad("not a percentage from 0 to 99".to_owned())),
            },
            Words(words) | MayBe(words) => match words.iter().find(|word| **word == value) {
                Some(word) => Ok(Value::Word(word)),
                None => Err(bad(format!("not one of {}", words.join(", ")))),
            },
            Limit(words) => match words.iter().find(|word| **word == value) {
                Some(word) => Ok(Value::Word(word)),
                None => parse_size(value)
                    .map(Value::Number)
                    .map_err(|_| bad(format!("neither a size nor one of {}", words.join(", ")))),
            },
            Rate => match parse_limit(value).map_err(bad)? {
                Some(rate) => Ok(Value::Number(rate)),
                None => Ok(Value::Word("off")),
            },
            Mode => match u32::from_str_radix(value, 8) {
                Ok(mode) if mode <= 0o777 => Ok(Value::Number(u64::from(mode))),
                _ => Err(bad("no mode in octal, as 0644".to_owned())),
            },
            Text(_) if value.is_empty() => Err(bad("it is empty".to_owned())),
            Text(_) => Ok(Value::Text(value.to_owned())),
        }
    }

    fn example(self) -> String {
        match self {
            Flag => String::new(),
            Number(least, _) => least.max(1).to_string(),
            Size | Rate => "1M".to_owned(),
            Percent => "10%".to_owned(),
            Words(words) | Limit(words) | MayBe(words) => words[0].to_owned(),
            Mode => "0644".to_owned(),
            Text(example) => example.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(typed: &str, expected: Result<(&'static str, Value), &str>) {
        match (Typed::parse(typed), expected) {
            (Ok(Typed { name, value }), expected) => {
                assert_eq!(Ok((name, value)), expected, "{typed}");
            }
            (Err(line), Err(part)) => assert!(line.contains(part), "{typed}: {line}"),
            (Err(line), Ok(_)) => panic!("{typed}: {line}"),
        }
    }

    #[test]
    fn options_are_read() {
        check("ro", Ok(("ro", Value::Flag)));
        check(" rsize=1M ", Ok(("rsize", Value::Number(1 << 20))));
        check("nfsvers=3", Ok(("vers", Value::Word("3"))));
        check("bcull=7%", Ok(("bcull", Value::Number(7))));
        check("bcull=7", Ok(("bcull", Value::Number(7))));
        check("fill=idle", Ok(("fill", Value::Word("idle"))));
        check("fill=1G", Ok(("fill", Value::Number(1 << 30))));
        check("fill=all", Err("neither a size nor one of off, idle"));
        check("lookupcache=pos", Ok(("lookupcache", Value::Word("pos"))));
        check("user=ann", Ok(("username", Value::Text("ann".to_owned()))));
        check("user", Ok(("user", Value::Flag)));
        check("cred=/etc/c", Ok(("credentials", Value::Text("/etc/c".to_owned()))));
        check("dir_mode=0750", Ok(("dir_mode", Value::Number(0o750))));
        check("class=log", Ok(("class", Value::Text("log".to_owned()))));
        check("rules=", Err("empty"));
        check("x-systemd.automount", Ok(("defaults", Value::Flag)));
    }

    #[test]
    fn mistakes_are_told() {
        check("rsise=1M", Err("did you mean rsize"));
        check("nfsver=3", Err("did you mean nfsvers"));
        check("zzzzzzzz", Err("--help"));
        check("ro=1", Err("takes no value"));
        check("rsize", Err("needs a value: rsize=1M"));
        check("nconnect=0", Err("from 1 to 16"));
        check("port=70000", Err("65535"));
        check("vers=4", Err("not one of 3"));
        check("vers=1.0", Err("not one of 3"));
        check("sec=krb5p", Err("not one of sys, ntlmssp, ntlmsspi, krb5, krb5i, none"));
        check("password=secret", Err("credentials=FILE"));
        check("file_mode=888", Err("octal"));
        check("username=", Err("empty"));
        check("bcull=100", Err("percentage"));
        check("cache_max=lots", Err("no size"));
    }

    #[test]
    fn options_of_the_other_protocol_are_refused() {
        for (protocol, typed, part) in [
            (Protocol::Nfs, "seal", "means nothing to NFS"),
            (Protocol::Nfs, "vers=3.1.1", "it is 3 or 3.0"),
            (Protocol::Smb, "udp", "means nothing to SMB"),
            (Protocol::Smb, "mountport=4", "means nothing to SMB"),
            (Protocol::Smb, "sec=sys", "ntlmssp"),
            (Protocol::Nfs, "sec=krb5", "for NFS it is sys"),
            (Protocol::Nfs, "kdc=host", "means nothing to NFS"),
            (Protocol::Nfs, "ca=/etc/ca.pem", "means nothing to NFS"),
            (Protocol::Native, "seal", "means nothing to larder"),
            (Protocol::Native, "vers=3", "it is default"),
        ] {
            let line = Typed::parse(typed).unwrap().check(protocol).unwrap_err();
            assert!(line.contains(part), "{line}");
        }
        for (protocol, typed) in [
            (Protocol::Nfs, "vers=3"),
            (Protocol::Smb, "vers=3.1.1"),
            (Protocol::Smb, "ro"),
            (Protocol::Smb, "nconnect=4"),
            (Protocol::Nfs, "user_xattr"),
            (Protocol::Nfs, "class=critical"),
            (Protocol::Native, "ca=/etc/ca.pem"),
            (Protocol::Native, "nconnect=4"),
        ] {
            assert_eq!(Typed::parse(typed).unwrap().check(protocol), Ok(()), "{typed}");
        }
    }

    #[test]
    fn no_option_is_listed_twice() {
        let mut names: Vec<_> = KNOWN.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
