//! What loses its name by a change that is answered here.
//!
//! A directory is removed or replaced here only under its own lease, besides that of the directory
//! in which it is: another client may know it, and would make something in it that it could not be
//! removed with. If its lease is recalled, it is removed at the server before that is returned.

use std::sync::Arc;

use larder_vfs::{Cred, Handle, Kind};

use crate::crossing::Part;
use crate::leased::Right;
use crate::overlay::There;
use crate::shared::Shared;
use crate::state::State;
use crate::under_way::UnderWay;

/// An object that is about to lose its name.
pub(crate) struct Going {
    /// It is no directory with something in it.
    pub(crate) is_empty: bool,
    /// The directory that it is, and by what right this machine says that it is empty.
    dir: Option<(Handle, Right)>,
}

impl Shared {
    /// Before a change takes the name of what is `there`. It looks into a directory if it
    /// `may_look`. `None`: the server must make the change.
    pub(crate) async fn begin_to_go(
        self: &Arc<Self>,
        cred: &Cred,
        there: Option<&There>,
        under_way: &UnderWay<'_>,
        may_look: bool,
    ) -> Option<Going> {
        let mut going = Going { is_empty: true, dir: None };
        let Some(there) = there else { return Some(going) };
        let (dir, is_directory) = {
            let mut state = self.state();
            let object = state.identity_of(there)?;
            let is_directory = state.kind_of(there)? == Kind::Directory;
            let handle = state.journal().client_handle(&object);
            let part =
                if is_directory { Part::Whole(Some(object)) } else { Part::Loss(Some(object)) };
            under_way.add(&mut state, part);
            (handle, is_directory)
        };
        if is_directory && may_look {
            let right = self.right_to(cred, &dir).await?;
            going.is_empty = self.is_empty(cred, there).await?;
            going.dir = Some((dir, right));
        }
        Some(going)
    }

    /// `Some` if what was found out of it is still so. To be asked in the step in which the change
    /// is recorded.
    pub(crate) fn has_still_to_go(&self, state: &mut State, going: &Going) -> Option<()> {
        let has = |(dir, right): &(Handle, Right)| self.has_still(state, dir, *right);
        going.dir.as_ref().is_none_or(has).then_some(())
    }
}
