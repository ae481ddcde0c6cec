//! Names on the wire: components without the characters that SMB reserves, joined by `\`.
//!
//! Reserved characters are mapped into Unicode's private use area, as macOS and `mount.cifs` with
//! `mapposix` do it ([`smb2::name`]), so that names of POSIX applications can be used. A name that
//! is not UTF-8 cannot, and a name that contains such private characters itself reads back with the
//! reserved ones.

use larder_vfs::{Error, Result};
use std::ffi::{OsStr, OsString};

/// The component to send for a name.
///
/// # Errors
/// [`Error::NameTooLong`] beyond `units_max` UTF-16 units; [`Error::InvalidArgument`] for strings
/// that are not names.
pub(super) fn component(name: &OsStr, units_max: u32) -> Result<String> {
    let name = name.to_str().ok_or(Error::InvalidArgument)?;
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(Error::InvalidArgument);
    }
    let wire = smb2::name::encode_name(name).into_owned();
    match wire.encode_utf16().count() > units_max as usize {
        true => Err(Error::NameTooLong),
        false => Ok(wire),
    }
}

/// The name that a component stands for.
pub(super) fn name(component: &str) -> OsString {
    smb2::name::decode_name(component).into_owned().into()
}

/// `name` below `dir`; the root is the empty path.
pub(super) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}\\{name}") }
}

/// The path of a subfolder as a person gives it, with `/` or `\`.
pub(super) fn subpath(given: &str) -> String {
    let parts = given.split(['/', '\\']).filter(|part| !part.is_empty());
    parts.map(smb2::name::encode_name).collect::<Vec<_>>().join("\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_posix_name_has_a_component_of_its_own() {
        for text in ["a", " ", "...", "a\\b", "new\nline", "q?*<>|\":", "\u{e4}\u{1f980}", "con"] {
            let wire = component(OsStr::new(text), 255).unwrap();
            assert!(!wire.contains(['\\', '?', '*', '<', '>', '|', '"', ':', '\n']), "{wire:?}");
            assert!(!wire.ends_with([' ', '.']), "{wire:?}");
            assert_eq!(name(&wire), text);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        for text in [&b""[..], b".", b"..", b"a/b", b"a\0", b"\xff"] {
            assert_eq!(component(OsStr::from_bytes(text), 255), Err(Error::InvalidArgument));
        }
        assert_eq!(component(OsStr::new("ab"), 1), Err(Error::NameTooLong));
        assert_eq!(component(OsStr::new("\u{1f980}"), 1), Err(Error::NameTooLong));
    }

    #[test]
    fn paths_are_joined() {
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("a\\b", "c"), "a\\b\\c");
        assert_eq!(subpath("/a//b c\\d/"), "a\\b c\\d");
        assert_eq!(subpath("/"), "");
    }
}
