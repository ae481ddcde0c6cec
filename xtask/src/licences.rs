//! Checks the licences and origins of everything we link, by `cargo metadata`.
//!
//! Every package that a build on this kind of machine links, tests included, comes from crates.io
//! or from this repository, and has a licence that lets us pass it on under ours. Advisories are
//! not looked up: the database of them is a git repository, and a build needs the registry only.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Licences that ask for no more than to be named.
const ALLOWED: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "CC0-1.0",
];

/// Where packages may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Libraries that must not be linked, directly or indirectly: their work is done without C here.
const BANNED: [&str; 3] = ["native-tls", "openssl", "openssl-sys"];

/// Checks all that is linked.
///
/// # Errors
/// If there is a complaint; each is printed first.
pub(crate) fn run(root: &Path) -> Result<()> {
    let told = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host()?])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(told.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&told.stderr));
    let metadata: Value = serde_json::from_slice(&told.stdout).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata tells no packages")?;
    let complaints: Vec<String> = packages.iter().filter_map(complaint).collect();
    complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
    ensure!(complaints.is_empty(), "licences: {} complaint(s)", complaints.len());
    eprintln!("licences: {} packages are in order", packages.len());
    Ok(())
}

/// The kind of machine that this is, as rustc names it.
pub(crate) fn host() -> Result<String> {
    let rustc = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let told = String::from_utf8(rustc.stdout).context("rustc -vV")?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not tell its host")?.to_owned())
}

/// The complaint about a package, if there is one.
fn complaint(package: &Value) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    if BANNED.contains(&name) {
        return Some(format!("{name} is not to be linked"));
    }
    // Ours has no source.
    if let Some(source) = package["source"].as_str().filter(|source| *source != REGISTRY) {
        return Some(format!("{name} comes from {source}"));
    }
    match package["license"].as_str().map(is_allowed) {
        Some(Ok(true)) => None,
        Some(Ok(false)) => Some(format!("{name} is under {}", package["license"])),
        Some(Err(cause)) => Some(format!("{name}: {cause:#}")),
        None => Some(format!("{name} names no licence")),
    }
}

/// Whether an expression (SPDX 2.1, annex D; and the `/` of old packages, which means OR) can be
/// met with licences that are allowed.
fn is_allowed(expression: &str) -> Result<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let spaced = spaced.replace(" WITH ", "_WITH_");
    let words: Vec<String> =
        spaced.split_whitespace().map(|word| word.replace("_WITH_", " WITH ")).collect();
    let mut rest = &words[..];
    let allowed = any(&mut rest)?;
    ensure!(rest.is_empty(), "cannot read the licence {expression:?}");
    Ok(allowed)
}

fn any(words: &mut &[String]) -> Result<bool> {
    let mut allowed = all(words)?;
    while take(words, "OR") {
        allowed |= all(words)?;
    }
    Ok(allowed)
}

fn all(words: &mut &[String]) -> Result<bool> {
    let mut allowed = one(words)?;
    while take(words, "AND") {
        allowed &= one(words)?;
    }
    Ok(allowed)
}

fn one(words: &mut &[String]) -> Result<bool> {
    if take(words, "(") {
        let allowed = any(words)?;
        ensure!(take(words, ")"), "a parenthesis of a licence is open");
        return Ok(allowed);
    }
    let Some((first, rest)) = words.split_first() else { bail!("a licence is missing") };
    *words = rest;
    Ok(ALLOWED.contains(&first.as_str()))
}

fn take(words: &mut &[String], wanted: &str) -> bool {
    let found = words.first().is_some_and(|first| first == wanted);
    if found {
        *words = &words[1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_mean_what_they_say() {
        for (expression, allowed) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("Apache-2.0 AND ISC", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-2.0", false),
            ("MIT OR Apache-2.0 AND GPL-2.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
        ] {
            assert_eq!(is_allowed(expression).unwrap(), allowed, "{expression}");
        }
        for nonsense in ["", "MIT OR", "(MIT", "MIT)", "MIT MIT"] {
            assert!(is_allowed(nonsense).is_err(), "{nonsense:?}");
        }
    }

    #[test]
    fn packages_are_judged_by_name_source_and_licence() {
        let package = |name: &str, source: Value, license: Value| {
            complaint(&serde_json::json!({ "name": name, "source": source, "license": license }))
        };
        let (here, mit) = (|| Value::from(REGISTRY), || Value::from("MIT"));
        assert_eq!(package("a", here(), mit()), None);
        assert_eq!(package("larder", Value::Null, mit()), None);
        assert!(package("a", "git+https://example.invalid".into(), mit()).is_some());
        assert!(package("a", here(), "GPL-3.0".into()).is_some());
        assert!(package("a", here(), Value::Null).is_some());
        assert!(package("openssl-sys", here(), mit()).is_some());
    }
}
