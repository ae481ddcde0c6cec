//! One change of names: answered here where that is possible, and otherwise made at the server.

use std::ffi::OsStr;

use larder_vfs::{Attr, Change, Cred, Handle, Made, New, Removal, Result, SetAttr};

use crate::crossing::Part;
use crate::names::Names;

impl Names {
    pub(crate) async fn make_name(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Result<Made> {
        let change = self.shared.begin_change();
        change.add_name(dir, name);
        if self.defers()
            && let Some(answer) =
                self.shared.make_here(cred, (dir, name), &new, &set, &change).await
        {
            return answer;
        }
        self.shared.make_there(cred, dir, name, new, set).await
    }

    pub(crate) async fn remove_name(
        &self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        what: Removal,
    ) -> Result<Change> {
        let change = self.shared.begin_change();
        change.add_name(dir, name);
        if self.defers()
            && let Some(answer) = self.shared.remove_here(cred, (dir, name), what, &change).await
        {
            return answer;
        }
        self.shared.remove_there(cred, (dir, name), what, &change).await
    }

    pub(crate) async fn rename_name(
        &self,
        cred: &Cred,
        from: (&Handle, &OsStr),
        to: (&Handle, &OsStr),
    ) -> Result<(Change, Change)> {
        let change = self.shared.begin_change();
        change.add_name(from.0, from.1);
        change.add_name(to.0, to.1);
        if self.defers()
            && let Some(answer) = self.shared.rename_here(cred, from, to, &change).await
        {
            return answer;
        }
        self.shared.rename_there(cred, from, to, &change).await
    }

    pub(crate) async fn link_name(
        &self,
        cred: &Cred,
        file: &Handle,
        dir: &Handle,
        name: &OsStr,
    ) -> Result<(Option<Attr>, Change)> {
        let change = self.shared.begin_change();
        change.add_name(dir, name);
        {
            let mut state = self.shared.state();
            let gains = Part::Gain(state.journal().identity(file));
            change.add(&mut state, gains);
        }
        if self.defers()
            && let Some(answer) = self.shared.link_here(cred, file, (dir, name), &change).await
        {
            return answer;
        }
        self.shared.link_there(cred, file, dir, name).await
    }
}
