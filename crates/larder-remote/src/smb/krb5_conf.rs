//! The parts of krb5.conf(5) that a login needs: the default realm, and the KDCs of realms.
//!
//! Tolerant on purpose: unknown content is skipped, because the file is written for other programs.
//! `include` and `includedir` are not read. For each name the first file or line counts.

use std::path::PathBuf;

/// Largest file, in bytes; what is beyond is not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The part of krb5.conf(5) that is used.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Krb5Conf {
    pub(super) default_realm: Option<String>,
    /// Pairs of realm and `HOST[:PORT]`, in the order of the file.
    kdcs: Vec<(String, String)>,
}

impl Krb5Conf {
    /// Reads these files; one that cannot be read says nothing. Blocks.
    pub(super) fn read(files: &[PathBuf]) -> Krb5Conf {
        let mut conf = Krb5Conf::default();
        for file in files {
            let mut text = Vec::new();
            let read = std::fs::File::open(file).and_then(|file| {
                std::io::Read::read_to_end(
                    &mut std::io::Read::take(file, FILE_BYTES_MAX),
                    &mut text,
                )
            });
            if read.is_ok() {
                conf.add(&String::from_utf8_lossy(&text));
            }
        }
        conf
    }

    /// The KDCs of a realm, as `HOST[:PORT]`.
    pub(super) fn kdcs(&self, realm: &str) -> Vec<String> {
        let of_realm = self.kdcs.iter().filter(|(of, _)| of == realm);
        of_realm.map(|(_, kdc)| kdc.clone()).collect()
    }

    fn add(&mut self, text: &str) {
        // Section, and the names of the braces that are open.
        let (mut section, mut open) = ("", Vec::new());
        for line in text.lines().map(str::trim) {
            if line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(rest) = line.strip_prefix('[') {
                (section, open) = (rest.split(']').next().unwrap_or(""), Vec::new());
            } else if line.starts_with('}') {
                open.pop();
            } else if let Some((name, value)) = line.split_once('=') {
                // A star after a name means that later files cannot change it.
                let (name, value) = (name.trim().trim_end_matches('*').trim_end(), value.trim());
                match value.strip_prefix('{') {
                    Some(rest) if rest.contains('}') => (),
                    Some(_) => open.push(name),
                    None => self.set(section, &open, name, value),
                }
            }
        }
    }

    fn set(&mut self, section: &str, within: &[&str], name: &str, value: &str) {
        match (section, within, name) {
            ("libdefaults", [], "default_realm") if self.default_realm.is_none() => {
                self.default_realm = Some(value.to_owned());
            }
            ("realms", [realm], "kdc") => {
                let all = value.split_whitespace();
                self.kdcs.extend(all.map(|kdc| ((*realm).to_owned(), kdc.to_owned())));
            }
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn conf(text: &str) -> Krb5Conf {
        let mut conf = Krb5Conf::default();
        conf.add(text);
        conf
    }

    #[test]
    fn realms_and_their_kdcs_are_found() {
        let conf = conf(
            "# a comment\n[libdefaults]\n  default_realm = HOME.TEST\n rdns=false\n\
             [realms]\nHOME.TEST = {\n\tkdc = one.home.test\n kdc = two.home.test:8888\n\
             admin_server = one.home.test\n v4_name_convert = {\n host = {\n kdc = no\n }\n }\n\
             kdc* = three.home.test\n}\n OTHER.TEST = {\n kdc = [fe80::1]:88\n }\n\
             [domain_realm]\n .home.test = HOME.TEST\n kdc = no\n",
        );
        assert_eq!(conf.default_realm.as_deref(), Some("HOME.TEST"));
        let kdcs = ["one.home.test", "two.home.test:8888", "three.home.test"];
        assert_eq!(conf.kdcs("HOME.TEST"), kdcs);
        assert_eq!(conf.kdcs("OTHER.TEST"), ["[fe80::1]:88"]);
        assert!(conf.kdcs("home.test").is_empty(), "case counts in realms");
    }

    #[test]
    fn what_makes_no_sense_is_skipped() {
        let broken = "default_realm = NO\n}\n}\n[realms\nA = { kdc = no }\nB = {\n kdc\n = x\n kdc = b\n\
             [libdefaults]\n default_realm = B\n default_realm = C\n include /etc/krb5.conf.d/x";
        let conf = conf(broken);
        assert_eq!(conf.default_realm.as_deref(), Some("B"));
        assert_eq!((conf.kdcs("A"), conf.kdcs("B")), (vec![], vec!["b".to_owned()]));
        assert_eq!(Krb5Conf::read(&["/no/such/file".into()]), Krb5Conf::default());
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "([a-z\\[\\]{}=*#;. \n]|realms|kdc){0,200}") {
            conf(&text);
        }
    }
}
