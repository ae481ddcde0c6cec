//! Where the archive is: a bucket, a prefix in it, and the store's address.

use object_store::Certificate;
use object_store::path::Path;
use thiserror::Error;

/// The region where none is named: that of stores that have no regions.
const REGION: &str = "us-east-1";

/// Why an archive's address cannot be used. Each says what to write instead.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlaceError {
    /// It is no `s3:` URL.
    #[error("{0:?} is no archive: write s3://BUCKET or s3://BUCKET/PREFIX")]
    Scheme(String),
    /// It names a user or password.
    #[error("an archive's URL has no keys in it: put them into the credentials file")]
    Keys,
    /// The bucket's name is not one.
    #[error("{0:?} is no name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens")]
    Bucket(String),
    /// The prefix has parts that no key may have.
    #[error("{0:?} is no prefix: parts between slashes, none of them empty, `.` or `..`")]
    Prefix(String),
    /// The certificates of authorities are none.
    #[error("no certificates of authorities, in PEM: {0}")]
    Authorities(String),
    /// The store's address is no URL.
    #[error("{0:?} is no address of a store: write https://HOST, or http://HOST:PORT without TLS")]
    Endpoint(String),
}

/// Where the archive is.
#[derive(Clone, Debug)]
pub struct Place {
    pub(crate) bucket: String,
    pub(crate) prefix: Path,
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) authorities: Vec<Certificate>,
}

impl Place {
    /// Reads `s3://BUCKET/PREFIX`, and the store's address if it is not Amazon's. Without a region
    /// it is `us-east-1`, which other stores expect, too.
    ///
    /// # Errors
    /// [`PlaceError`], with what to write instead.
    pub fn parse(
        url: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
    ) -> Result<Place, PlaceError> {
        let rest = url.strip_prefix("s3://").ok_or_else(|| PlaceError::Scheme(hidden(url)))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains('@') {
            return Err(PlaceError::Keys);
        }
        if !is_bucket(bucket) {
            return Err(PlaceError::Bucket(bucket.to_owned()));
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let refused = || PlaceError::Prefix(prefix.to_owned());
        // Path would drop a slash at the beginning.
        if prefix.starts_with('/') {
            return Err(refused());
        }
        let prefix = Path::parse(prefix).map_err(|_| refused())?;
        let endpoint = endpoint.map(address).transpose()?;
        let region = region.unwrap_or(REGION).to_owned();
        let authorities = Vec::new();
        Ok(Place { bucket: bucket.to_owned(), prefix, endpoint, region, authorities })
    }

    /// Trusts these authorities (PEM), too, when the store shows its certificate; without this,
    /// those that the system trusts.
    ///
    /// # Errors
    /// [`PlaceError::Authorities`].
    pub fn trusting(mut self, pem: &[u8]) -> Result<Place, PlaceError> {
        let read = Certificate::from_pem_bundle(pem);
        let read = read.map_err(|error| PlaceError::Authorities(error.to_string()))?;
        if read.is_empty() {
            return Err(PlaceError::Authorities("there are none".to_owned()));
        }
        self.authorities.extend(read);
        Ok(self)
    }

    /// The bucket and prefix as a URL, for people.
    pub fn url(&self) -> String {
        let slash = if self.prefix.as_ref().is_empty() { "" } else { "/" };
        format!("s3://{}{slash}{}", self.bucket, self.prefix)
    }

    /// The store, for people.
    pub(crate) fn store(&self) -> &str {
        self.endpoint.as_deref().unwrap_or("Amazon S3")
    }
}

/// The address of a store, without a slash at its end.
fn address(text: &str) -> Result<String, PlaceError> {
    let refused = || PlaceError::Endpoint(hidden(text));
    let (scheme, rest) = text.split_once("://").ok_or_else(refused)?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('@') {
        return Err(PlaceError::Keys);
    }
    let is_host = !rest.is_empty() && !rest.contains(['/', '?', '#', ' ']);
    match (scheme, is_host) {
        ("http" | "https", true) => Ok(format!("{scheme}://{rest}")),
        _ => Err(refused()),
    }
}

/// A text for a message, without what may be a key in it.
fn hidden(text: &str) -> String {
    text.rsplit_once('@').map_or(text, |(_, rest)| rest).to_owned()
}

fn is_bucket(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
    let has_ends = !name.starts_with(['.', '-']) && !name.ends_with(['.', '-']);
    (3..=63).contains(&name.len()) && name.chars().all(is_plain) && has_ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_bucket_and_prefix() {
        for (url, bucket, prefix) in [
            ("s3://backup", "backup", ""),
            ("s3://backup/", "backup", ""),
            ("s3://backup/larder/office/", "backup", "larder/office"),
            ("s3://a.b-3/x y", "a.b-3", "x y"),
        ] {
            let place = Place::parse(url, None, None).unwrap();
            assert_eq!((place.bucket.as_str(), place.prefix.as_ref()), (bucket, prefix));
            assert_eq!(place.region, "us-east-1");
            assert_eq!(place.url(), url.strip_suffix('/').unwrap_or(url));
        }
    }

    #[test]
    fn what_is_no_url_is_refused_with_what_to_write() {
        for (url, says) in [
            ("backup/office", "s3://BUCKET"),
            ("https://backup", "s3://BUCKET"),
            ("s3://", "bucket"),
            ("s3://ab", "bucket"),
            ("s3://Backup", "bucket"),
            ("s3://-backup", "bucket"),
            ("s3://key:secret@backup", "credentials file"),
            ("s3://backup//x", "prefix"),
            ("s3://backup/a/../b", "prefix"),
        ] {
            let error = Place::parse(url, None, None).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn authorities_are_certificates() {
        for pem in ["", "no certificate"] {
            let place = Place::parse("s3://backup", None, None).unwrap();
            let error = place.trusting(pem.as_bytes()).unwrap_err();
            assert!(matches!(error, PlaceError::Authorities(_)), "{error}");
        }
    }

    #[test]
    fn a_store_has_an_address() {
        let parse = |text| Place::parse("s3://backup", Some(text), None);
        for (text, address) in [
            ("http://10.0.0.1:7070", "http://10.0.0.1:7070"),
            ("https://s3.example.com/", "https://s3.example.com"),
        ] {
            assert_eq!(parse(text).unwrap().endpoint.as_deref(), Some(address));
        }
        for text in ["s3.example.com", "ftp://x", "http://", "http://x/y", "http://k:secret@x"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
