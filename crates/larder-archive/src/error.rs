//! Why the archive did not do something: one line that says what to do next.
//!
//! The store's own answer is XML of several lines, and may repeat the account's key: of it, only
//! the code is shown.

use thiserror::Error;

use crate::place::Place;

/// What the store does not accept. A later try is refused as well until somebody changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The account or its secret.
    Credentials,
    /// What the account may do.
    Permission,
    /// The bucket: there is none of this name.
    Bucket,
    /// The clock of this machine.
    Clock,
    /// The region.
    Region,
    /// Something else.
    Other,
}

/// Why the archive did not do something. Each is a variant by what the caller does.
#[derive(Debug, Error)]
pub enum Error {
    /// The store does not answer, or fails: try again later.
    #[error(
        "the archive at {store} does not answer: {cause}; is it running, and is the address right?"
    )]
    Unreachable {
        /// The store.
        store: String,
        /// The reason, in one line.
        cause: String,
    },
    /// The store refuses.
    #[error("{text}")]
    Refused {
        /// What it does not accept.
        why: Refusal,
        /// What it is, and what to do.
        text: String,
    },
    /// An object is not there.
    #[error("the archive does not have {0}: was it removed there?")]
    Missing(String),
    /// An object is not what was put.
    #[error("{0} in the archive is not what was stored: it was altered or cut short there")]
    Altered(String),
    /// The bytes to put cannot be read.
    #[error("cannot read what is to be archived: {0}")]
    Source(std::io::Error),
}

impl Error {
    /// The error for what `object_store` answers about an object.
    pub(crate) fn from_store(place: &Place, object: &str, error: &object_store::Error) -> Error {
        let text = error.to_string();
        let refused = |why, text| Error::Refused { why, text };
        let store = place.store();
        let other = || one_line(error);
        match code(&text) {
            Some("NoSuchBucket") => {
                let text = format!("{store} has no bucket {}: create it first", place.bucket);
                refused(Refusal::Bucket, text)
            }
            Some("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken") => {
                let text = format!("{store} refuses the archive's keys: check the credentials");
                refused(Refusal::Credentials, text)
            }
            Some("RequestTimeTooSkewed") => {
                let text = format!("{store} says that this machine's clock is wrong: set it");
                refused(Refusal::Clock, text)
            }
            Some("AuthorizationHeaderMalformed" | "PermanentRedirect") => {
                let text = format!("{store} expects another region than {}", place.region);
                refused(Refusal::Region, text)
            }
            // It was completed, and the answer was lost; or it is gone. A put begins anew.
            Some("NoSuchUpload") => {
                let cause = "it does not know an upload that was begun".to_owned();
                Error::Unreachable { store: store.to_owned(), cause }
            }
            Some("NoSuchKey") => Error::Missing(object.to_owned()),
            // The object is shorter than the range that is asked for.
            Some("InvalidRange") => Error::Altered(object.to_owned()),
            code => match error {
                object_store::Error::NotFound { .. } => Error::Missing(object.to_owned()),
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => {
                    let url = place.url();
                    let text = format!(
                        "{store} does not let this account use {url}: it needs to get, put, \
                         delete and list objects there"
                    );
                    refused(Refusal::Permission, text)
                }
                object_store::Error::Generic { .. } if !is_client_error(&text) => {
                    Error::Unreachable { store: store.to_owned(), cause: other() }
                }
                _ => {
                    let said = code.map_or_else(other, str::to_owned);
                    refused(Refusal::Other, format!("{store} refuses {object}: {said}"))
                }
            },
        }
    }
}

/// The code of a store's answer, which is in the error's text as XML.
fn code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    rest.split_once("</Code>").map(|(code, _)| code)
}

/// Whether the store answered that the request is wrong (HTTP status 4xx), and not that it is late
/// (408) or one too many (429).
fn is_client_error(text: &str) -> bool {
    let status = text.split_once("status code: ").map(|(_, rest)| rest);
    status.is_some_and(|status| {
        status.starts_with('4') && !status.starts_with("408") && !status.starts_with("429")
    })
}

/// The innermost cause, which is what a person can do something about.
fn one_line(error: &object_store::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(next) = inner.source() {
        inner = next;
    }
    let text = inner.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of an answer of the store: the error's variant, for comparison, and its text.
    fn made_of(kind: fn(String) -> object_store::Error, answer: &str) -> (String, String) {
        let place = Place::parse("s3://backup/office", None, None).unwrap();
        let error = Error::from_store(&place, "the object", &kind(answer.to_owned()));
        let name = match &error {
            Error::Refused { why, .. } => format!("{why:?}"),
            other => format!("{other:?}").split([' ', '(']).next().unwrap().to_owned(),
        };
        (name, error.to_string())
    }

    fn generic(answer: String) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: answer.into() }
    }

    fn not_found(answer: String) -> object_store::Error {
        object_store::Error::NotFound { path: "x".to_owned(), source: answer.into() }
    }

    fn denied(answer: String) -> object_store::Error {
        object_store::Error::PermissionDenied { path: "x".to_owned(), source: answer.into() }
    }

    #[test]
    fn each_answer_of_a_store_is_one_line_with_what_to_do() {
        for (kind, answer, name, says) in [
            (denied as fn(String) -> _, "AccessDenied", "Permission", "get, put, delete and list"),
            (denied, "InvalidAccessKeyId", "Credentials", "check the credentials"),
            (denied, "SignatureDoesNotMatch", "Credentials", "check the credentials"),
            (denied, "RequestTimeTooSkewed", "Clock", "set it"),
            (generic, "AuthorizationHeaderMalformed", "Region", "another region than us-east-1"),
            (generic, "InvalidRange", "Altered", "cut short"),
            (not_found, "NoSuchBucket", "Bucket", "create it first"),
            (not_found, "NoSuchKey", "Missing", "the object"),
            (not_found, "NoSuchUpload", "Unreachable", "an upload"),
        ] {
            let answer = format!(
                "status code: 403: <Error>\n<Code>{answer}</Code>\n<Message>x</Message>\n\
                 <AWSAccessKeyId>an account</AWSAccessKeyId></Error>"
            );
            let (made, text) = made_of(kind, &answer);
            assert_eq!(made, name, "{answer}");
            assert!(text.contains(says) && text.lines().count() == 1, "{text}");
            assert!(!text.contains("an account"), "{text}");
        }
    }

    #[test]
    fn only_what_passes_is_tried_again() {
        for (answer, name) in [
            ("status code: 400 Bad Request: ", "Other"),
            ("status code: 408 Request Timeout: ", "Unreachable"),
            ("status code: 429 Too Many Requests: ", "Unreachable"),
            ("status code: 503 Service Unavailable: ", "Unreachable"),
            ("tcp connect error", "Unreachable"),
        ] {
            assert_eq!(made_of(generic, answer).0, name, "{answer}");
        }
        assert_eq!(made_of(not_found, "status code: 404 Not Found: ").0, "Missing");
    }
}
