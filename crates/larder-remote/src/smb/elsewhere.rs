//! Calls upon a file by its path, where it may not be any more.

use super::channel::{Moments, attempt, call};
use super::keeping::Whereabouts;
use super::share::Share;
use larder_vfs::{Cred, Handle, Result};

/// How often a file is searched for that was not at its expected path. It may have had several
/// names, and lost some of them.
pub(super) const FOUND_MAX: u32 = 4;

/// Makes a call for a file on behalf of `$cred`, and repeats it if the file was not at its expected
/// path and was found elsewhere. The call may also read `$other`.
macro_rules! upon {
    ($share:expr, $cred:expr, $file:expr $(, beside $other:expr)?, |$link:ident, $again:ident| $try:expr) => {{
        let files = [&*$file $(, $other)?];
        let mut answer =
            call!($cred.deadline, $share, files, $share.channel($file), |$link, $again| $try);
        for _ in 0..$crate::smb::elsewhere::FOUND_MAX {
            if !matches!(answer, Err(Error::Stale)) || !$share.finds_again($cred, $file).await {
                break;
            }
            answer =
                call!($cred.deadline, $share, files, $share.channel($file), |$link, $again| $try);
        }
        answer
    }};
}
pub(super) use upon;

impl Share {
    /// Whether a file that was not at its expected path has another name that is known, or is open
    /// here and found at its present path.
    pub(super) async fn finds_again(&self, cred: &Cred, file: &Handle) -> bool {
        if self.path(file).is_ok() {
            return true;
        }
        let mut moments = Moments::new(&self.options.clock);
        loop {
            let found: Result<Whereabouts> = async {
                call!(cred.deadline, self, [file], self.channel(file), |link, _again| self
                    .find_standing(&link, file))
            }
            .await;
            match found {
                Ok(Whereabouts::Elsewhere) if moments.wait().await => (),
                found => return found == Ok(Whereabouts::Recorded),
            }
        }
    }
}
