//! The table of everything that this crate declares, for the test that compares it with the C headers.
//!
//! Not part of the API: it has no stability at all.

/// Everything that is declared, in the order of the modules.
pub fn items() -> impl Iterator<Item = &'static Item> {
    // A module whose table is missing here has an unused constant, which the compiler reports.
    [
        crate::ah::LAYOUT,
        crate::cm::LAYOUT,
        crate::cm::event::LAYOUT,
        crate::cm::id::LAYOUT,
        crate::cm::route::LAYOUT,
        crate::context::LAYOUT,
        crate::cq::LAYOUT,
        crate::cq_ex::LAYOUT,
        crate::device::LAYOUT,
        crate::event::LAYOUT,
        crate::gid::LAYOUT,
        crate::ibverbs::LAYOUT,
        crate::mr::LAYOUT,
        crate::mw::LAYOUT,
        crate::pd::LAYOUT,
        crate::port::LAYOUT,
        crate::qp::LAYOUT,
        crate::qp_attr::LAYOUT,
        crate::qp_ex::LAYOUT,
        crate::srq::LAYOUT,
        crate::wc::LAYOUT,
        crate::wr::LAYOUT,
    ]
    .into_iter()
    .flatten()
}

/// One declaration.
#[derive(Debug, Clone, Copy)]
pub enum Item {
    /// A struct or a union.
    Record(Record),
    /// A type of which only the name is known.
    Opaque {
        /// The tag of C's struct.
        name: &'static str,
    },
    /// An integer type that stands for a C enumeration.
    Enumeration {
        /// The tag of C's enum.
        name: &'static str,
        /// Bytes.
        size: usize,
        /// Whether it has negative values.
        signed: bool,
    },
    /// A constant.
    Constant {
        /// C's name, an enumerator's or a macro's.
        name: &'static str,
        /// The value.
        value: i128,
        /// The release of rdma-core that brought it, if that is later than the oldest that we test with.
        since: Option<&'static str>,
    },
    /// A function that the library exports.
    Function {
        /// The symbol.
        name: &'static str,
        /// Its type, as Rust source.
        ty: &'static str,
    },
}

/// A struct or a union.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Rust's name, which is C's tag unless `place` says otherwise.
    pub name: &'static str,
    /// What C calls it.
    pub place: Place,
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// Members.
    pub fields: &'static [Field],
}

/// Where C's headers have a record.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// It is `struct NAME`.
    Struct,
    /// It is `struct NAME`, whose new fields go before the old ones, so that offsets count from its end.
    StructFromItsEnd,
    /// It is `union NAME`.
    Union,
    /// It has no tag, but is the type of this member, such as `ibv_send_wr.wr.rdma`.
    TypeOf(&'static str),
    /// It is a union without tag or name in this struct, so that its members look like the struct's.
    UnnamedIn(&'static str),
}

/// A member.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The name.
    pub name: &'static str,
    /// Its type, as Rust source.
    pub ty: &'static str,
    /// Bytes from the record's beginning.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// The release of rdma-core that brought it, if that is later than the oldest that we test with.
    pub since: Option<&'static str>,
}

/// The release in a list of none or one.
pub(crate) const fn since(release: &[&'static str]) -> Option<&'static str> {
    match release {
        [release] => Some(release),
        _ => None,
    }
}
