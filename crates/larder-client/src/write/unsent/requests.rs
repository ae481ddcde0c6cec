//! [`Requests`]: whether the server may have a change of ours that nothing here shows.
//!
//! Unsent bytes are over a version on record. While no request of ours can have changed the file
//! since, any other version at the server is another client's. From the first such request on the
//! two cannot be told apart: an answer may be lost, or its process may die before it has recorded
//! it. So that is recorded before the request goes, and lasts until nothing is unsent: the next
//! process then knows whether it may compare.

/// What the server may have since bytes of a file became unsent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Requests {
    /// Nothing of ours.
    #[default]
    None,
    /// Nothing of ours, and an earlier process left the bytes: before the first request the server
    /// is asked for its version.
    NoneByEarlier,
    /// A change of ours, perhaps.
    Made,
}

impl Requests {
    /// Whether the server may have a change of ours.
    pub(crate) fn are_made(self) -> bool {
        self == Requests::Made
    }

    /// Whether the server is to be asked before the first request.
    pub(crate) fn ask_first(self) -> bool {
        self == Requests::NoneByEarlier
    }

    /// A request is about to be made, or may have been made. Returns whether that is new.
    pub(crate) fn make(&mut self) -> bool {
        let before = std::mem::replace(self, Requests::Made);
        before != Requests::Made
    }

    /// An earlier process left the bytes, and has recorded each request before it made it.
    pub(crate) fn left_by_earlier(&mut self) {
        if *self == Requests::None {
            *self = Requests::NoneByEarlier;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In every order of requests and processes the server is asked if and only if no request was
    /// made since the bytes became unsent, and another process than the present one wrote them.
    #[test]
    fn the_server_is_asked_only_while_no_request_was_made() {
        const LENGTH: u32 = 6;
        for history in 0..2_u32.pow(LENGTH) {
            let (mut requests, mut made, mut left) = (Requests::default(), false, false);
            for step in 0..LENGTH {
                if history >> step & 1 == 0 {
                    assert_eq!(requests.make(), !made, "{history:b}: recorded once");
                    made = true;
                } else {
                    // The process dies, and the next one reads the record.
                    requests = Requests::default();
                    if made {
                        requests.make();
                    }
                    requests.left_by_earlier();
                    left = true;
                }
                assert_eq!(requests.are_made(), made, "{history:b}");
                assert_eq!(requests.ask_first(), left && !made, "{history:b}");
            }
        }
    }
}
