//! `mount.larder`: what mount(8) runs for fstab(5) and `mount -t larder`. It is this program under
//! that name, by a symbolic link at `/sbin/mount.larder`, and turns into `larder mount`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::error::Usage;

/// The name under which mount(8) runs this program.
const NAME: &str = "mount.larder";

/// Options of ours that are arguments of `larder mount`.
const ARGUMENTS: [&str; 2] = ["cache", "log"];

/// Values of `cache=` that mount.cifs(8) has and that name no directory: how strictly changes by
/// others are seen. larder is never less strict than these ask.
const CIFS_CACHES: [&str; 2] = ["strict", "loose"];

/// Places that are no paths.
const WORDS: [(&str, &[&str]); 2] = [("cache", &["none"]), ("log", &["syslog", "journal"])];

/// What mount(8) asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// Arguments of `larder`.
    Mount(Vec<OsString>),
    /// Only check whether the mount would be right.
    Nothing,
}

/// Whether we were run by that name.
pub(crate) fn is_meant(program: Option<&OsStr>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name() == Some(OsStr::new(NAME)))
}

/// Turns into `larder mount`.
///
/// # Errors
/// If the arguments are not those of mount(8), or our own program cannot be found.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let arguments = match asked(arguments)? {
        Asked::Mount(arguments) => arguments,
        Asked::Nothing => return Ok(ExitCode::SUCCESS),
    };
    let program = std::env::current_exe().context("cannot find our own program")?;
    Err(Command::new(program).args(arguments).exec()).context("cannot run ourselves")
}

/// Reads `SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]` (mount(8), EXTERNAL HELPERS).
fn asked(arguments: impl Iterator<Item = OsString>) -> Result<Asked> {
    let usage = || Usage(format!("usage: {NAME} SOURCE MNT [-fnsv] [-o OPTION,...]"));
    let (mut places, mut options, mut fake) = (Vec::new(), Vec::new(), false);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-o") => options.push(arguments.next().ok_or_else(usage)?),
            Some("-t") => drop(arguments.next().ok_or_else(usage)?),
            Some("-N") => bail!(Usage(format!("{NAME} knows no other namespaces (-N)"))),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                if !flags[1..].chars().all(|flag| "fnsv".contains(flag)) {
                    return Err(usage().into());
                }
                fake |= flags.contains('f');
            }
            _ => places.push(argument),
        }
    }
    let [source, mountpoint] = <[OsString; 2]>::try_from(places).map_err(|_| usage())?;
    if fake {
        return Ok(Asked::Nothing);
    }
    let mut all = vec![OsString::from("mount"), source, mountpoint];
    for option in options {
        let option = option.into_string().map_err(|_| usage())?;
        let (ours, rest): (Vec<&str>, Vec<&str>) = option.split(',').partition(|one| {
            one.split_once('=').is_some_and(|(name, _)| ARGUMENTS.contains(&name.trim()))
        });
        for (name, value) in ours.iter().filter_map(|one| one.split_once('=')) {
            let (name, value) = (name.trim(), value.trim());
            if (name, CIFS_CACHES.contains(&value)) == ("cache", true) {
                continue;
            }
            refuse_relative(name, value)?;
            all.extend([format!("--{name}").into(), value.into()]);
        }
        if !rest.is_empty() {
            all.extend(["-o".into(), rest.join(",").into()]);
        }
    }
    Ok(Asked::Mount(all))
}

/// fstab(5) does not say to which directory a relative path would be relative.
fn refuse_relative(name: &str, value: &str) -> Result<(), Usage> {
    let is_word = WORDS.iter().any(|(of, words)| *of == name && words.contains(&value));
    match is_word || Path::new(value).is_absolute() {
        true => Ok(()),
        false => Err(Usage(format!("{name}={value} must be an absolute path"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_of(typed: &str) -> Result<Asked> {
        asked(typed.split(' ').map(OsString::from))
    }

    #[test]
    fn what_mount_says_becomes_a_mount_of_ours() {
        for (typed, expected) in [
            ("h:/e /mnt -o rw", "mount h:/e /mnt -o rw"),
            ("h:/e /mnt -sv -o rw,cache=/c,bg -t larder", "mount h:/e /mnt --cache /c -o rw,bg"),
            ("//h/s /mnt -o log=/l,cache=none", "mount //h/s /mnt --log /l --cache none"),
            ("-n h:/e /mnt", "mount h:/e /mnt"),
            ("//h/s /mnt -o cache=strict,seal", "mount //h/s /mnt -o seal"),
            ("//h/s /mnt -o cache=loose", "mount //h/s /mnt"),
            ("h:/e /mnt -o log=journal,cache=none", "mount h:/e /mnt --log journal --cache none"),
        ] {
            let expected = expected.split(' ').map(OsString::from).collect();
            assert_eq!(asked_of(typed).unwrap(), Asked::Mount(expected), "{typed}");
        }
        assert_eq!(asked_of("h:/e /mnt -f -o rw").unwrap(), Asked::Nothing);
        for typed in ["h:/e /mnt -o cache=srict", "h:/e /mnt -o log=here", "h:/e /mnt -o cache="] {
            let error = asked_of(typed).unwrap_err();
            assert!(error.to_string().contains("absolute path"), "{typed}: {error}");
        }
        for typed in ["h:/e", "h:/e /mnt /more", "h:/e /mnt -o", "h:/e /mnt -x", "h:/e /mnt -N 1"] {
            assert!(asked_of(typed).unwrap_err().is::<Usage>(), "{typed}");
        }
    }

    #[test]
    fn the_name_decides() {
        assert!(is_meant(Some(OsStr::new("/sbin/mount.larder"))));
        assert!(!is_meant(Some(OsStr::new("/usr/bin/larder"))) && !is_meant(None));
    }
}
