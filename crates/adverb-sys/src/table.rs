//! The macros that declare items and add them to the [`layout`](crate::layout) table.

/// Declares the items of a C header.
///
/// ```text
/// shapes! {
///     pub struct ibv_pd { pub handle: u32, … }                      struct ibv_pd
///     pub struct ibv_send_wr_rdma inside ibv_send_wr.wr.rdma { … }  the type of that member, without a tag
///     pub struct verbs_context grows_at_start { … }                 new fields are added before the old ones
///     pub union ibv_gid { … }                                       union ibv_gid
///     pub union ibv_wc_imm unnamed_in ibv_wc { … }                  a union without tag or name in a struct
///     pub opaque ibv_xrcd;                                          struct ibv_xrcd, without its fields
///     pub enum ibv_mtu: c_uint { IBV_MTU_256 = 1, … }               enum ibv_mtu: an integer, its values
///     pub const c_uint { IBV_SEND_FENCE = 1 << 0, … }               values that other integers hold
///     pub const c_uint since "45" { … }                             the same, newer than headers of 44
/// }
/// ```
///
/// A field that is newer than the oldest headers is written `pub field: type = since "45"`.
///
/// The types of fields are integers, raw pointers, arrays, `Option`s of C functions, records, and C structs of the libc
/// crate. The layout test fails on any other type, because `zeroed` depends on this.
macro_rules! shapes {
    (@ [$($done:tt)*]) => {
        /// The declarations of this module.
        pub(crate) const LAYOUT: &[crate::layout::Item] = &[$($done)*];
    };
    (@ $done:tt $(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* } $($rest:tt)*) => {
        shapes!(@record $done [$(#[$meta])*] struct $name [Struct] { $($fields)* } $($rest)*);
    };
    (@ $done:tt $(#[$meta:meta])* pub struct $name:ident grows_at_start { $($fields:tt)* }
     $($rest:tt)*) => {
        shapes!(@record $done [$(#[$meta])*] struct $name [StructGrowingAtStart] { $($fields)* } $($rest)*);
    };
    (@ $done:tt $(#[$meta:meta])* pub struct $name:ident inside $($path:ident).+ { $($fields:tt)* }
     $($rest:tt)*) => {
        shapes!(@record $done [$(#[$meta])*] struct $name [TypeOf(stringify!($($path).+))]
                { $($fields)* } $($rest)*);
    };
    (@ $done:tt $(#[$meta:meta])* pub union $name:ident { $($fields:tt)* } $($rest:tt)*) => {
        shapes!(@record $done [$(#[$meta])*] union $name [Union] { $($fields)* } $($rest)*);
    };
    (@ $done:tt $(#[$meta:meta])* pub union $name:ident inside $($path:ident).+ { $($fields:tt)* }
     $($rest:tt)*) => {
        shapes!(@record $done [$(#[$meta])*] union $name [TypeOf(stringify!($($path).+))]
                { $($fields)* } $($rest)*);
    };
    (@ $done:tt $(#[$meta:meta])* pub union $name:ident unnamed_in $outer:ident { $($fields:tt)* }
     $($rest:tt)*) => {
        shapes!(@record $done [$(#[$meta])*] union $name [AnonymousIn(stringify!($outer))]
                { $($fields)* } $($rest)*);
    };
    (@ [$($done:tt)*] $(#[$meta:meta])* pub opaque $name:ident; $($rest:tt)*) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
            _not_send_or_unpin: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
        }

        shapes!(@ [$($done)* crate::layout::Item::Opaque { name: stringify!($name) },] $($rest)*);
    };
    (@ [$($done:tt)*] $(#[$meta:meta])* pub enum $name:ident: $repr:ty {
        $($(#[$cmeta:meta])* $constant:ident = $value:expr),* $(,)?
    } $($rest:tt)*) => {
        $(#[$meta])*
        pub type $name = $repr;
        $($(#[$cmeta])* pub const $constant: $name = $value;)*

        shapes!(@ [$($done)*
            crate::layout::Item::Enumeration {
                name: stringify!($name),
                size: size_of::<$repr>(),
                signed: <$repr>::MIN != 0,
            },
            $(crate::layout::Item::Constant {
                name: stringify!($constant),
                value: $constant as i128,
                since: None,
            },)*
        ] $($rest)*);
    };
    (@ [$($done:tt)*] pub const $ty:ty {
        $($(#[$cmeta:meta])* $constant:ident = $value:expr),* $(,)?
    } $($rest:tt)*) => {
        shapes!(@constants [$($done)*] None, $ty { $($(#[$cmeta])* $constant = $value,)* } $($rest)*);
    };
    (@ [$($done:tt)*] pub const $ty:ident since $since:literal {
        $($(#[$cmeta:meta])* $constant:ident = $value:expr),* $(,)?
    } $($rest:tt)*) => {
        shapes!(@constants [$($done)*] Some($since), $ty { $($(#[$cmeta])* $constant = $value,)* } $($rest)*);
    };
    (@constants [$($done:tt)*] $since:expr, $ty:ty {
        $($(#[$cmeta:meta])* $constant:ident = $value:expr,)*
    } $($rest:tt)*) => {
        $($(#[$cmeta])* pub const $constant: $ty = $value;)*

        shapes!(@ [$($done)*
            $(crate::layout::Item::Constant {
                name: stringify!($constant),
                value: $constant as i128,
                since: $since,
            },)*
        ] $($rest)*);
    };
    (@record [$($done:tt)*] [$(#[$meta:meta])*] $kind:ident $name:ident [$($declaration:tt)*] {
        $($(#[$fmeta:meta])* pub $field:ident: $ty:ty $(= since $since:literal)?),* $(,)?
    } $($rest:tt)*) => {
        $(#[$meta])*
        #[repr(C)]
        pub $kind $name {
            $($(#[$fmeta])* pub $field: $ty,)*
        }

        impl $name {
            /// Returns a value with all bytes zero.
            #[must_use]
            #[inline]
            pub const fn zeroed() -> Self {
                // SAFETY: the fields are integers, raw pointers, optional functions, and arrays and records
                // of these, for all of which zero is a value.
                unsafe { core::mem::zeroed() }
            }
        }

        impl Default for $name {
            /// Returns `zeroed()`.
            #[inline]
            fn default() -> Self {
                Self::zeroed()
            }
        }

        shapes!(@ [$($done)*
            crate::layout::Item::Record(crate::layout::Record {
                name: stringify!($name),
                declaration: crate::layout::CDeclaration::$($declaration)*,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[$(crate::layout::Field {
                    name: stringify!($field),
                    ty: stringify!($ty),
                    offset: core::mem::offset_of!($name, $field),
                    size: size_of::<$ty>(),
                    since: crate::layout::since(&[$($since)?]),
                },)*],
            }),
        ] $($rest)*);
    };
    ($(#[$meta:meta])* pub $($rest:tt)*) => {
        shapes!(@ [] $(#[$meta])* pub $($rest)*);
    };
}

/// Declares the functions of a library: a struct with a field for each symbol, filled in when the library is
/// loaded.
///
/// The functions under `called` also become methods. The methods of those under `redirected` and `optional` are
/// written by hand: the header redirects the former to other functions, and an older library may lack the latter.
macro_rules! symbols {
    (
        $(#[$meta:meta])*
        pub struct $library:ident from $file:literal;
        called {
            $($(#[$cmeta:meta])* fn $called:ident($($carg:ident: $cty:ty),* $(,)?) $(-> $cret:ty)?;)*
        }
        redirected {
            $($redirected:ident: $rty:ty;)*
        }
        optional {
            $($optional:ident: $oty:ty;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $library {
            $(
                #[doc = concat!("The symbol `", stringify!($called), "`.")]
                pub $called: unsafe extern "C" fn($($carg: $cty),*) $(-> $cret)?,
            )*
            $(
                #[doc = concat!(
                    "The symbol `",
                    stringify!($redirected),
                    "`, which the C header replaces with another function.",
                )]
                pub $redirected: $rty,
            )*
            $(
                #[doc = concat!("The symbol `", stringify!($optional), "`, if the library has it.")]
                pub $optional: Option<$oty>,
            )*
        }

        impl $library {
            /// Returns the loaded library. The first call loads the library, which is never unloaded.
            ///
            /// After a failure, the next call tries to load the library again.
            pub fn load() -> Result<&'static Self, crate::LoadError> {
                static LOADED: std::sync::OnceLock<$library> = std::sync::OnceLock::new();
                if let Some(loaded) = LOADED.get() {
                    return Ok(loaded);
                }
                let library = Self::find(&crate::load::open($file)?)?;
                Ok(LOADED.get_or_init(|| library))
            }

            fn find(library: &crate::load::LoadedLibrary) -> Result<Self, crate::LoadError> {
                Ok(Self {
                    $($called: {
                        // SAFETY: the type is that of the C declaration, which the layout test compares.
                        unsafe { library.required(concat!(stringify!($called), "\0"))? }
                    },)*
                    $($redirected: {
                        // SAFETY: the type is that of the C declaration, which the layout test compares.
                        unsafe { library.required(concat!(stringify!($redirected), "\0"))? }
                    },)*
                    $($optional: {
                        // SAFETY: the type is that of the C declaration, which the layout test compares.
                        unsafe { library.optional(concat!(stringify!($optional), "\0")) }
                    },)*
                })
            }

            $(
                $(#[$cmeta])*
                #[inline]
                pub unsafe fn $called(&self, $($carg: $cty),*) $(-> $cret)? {
                    // SAFETY: the caller upholds the requirements of the function.
                    unsafe { (self.$called)($($carg),*) }
                }
            )*
        }

        impl core::fmt::Debug for $library {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($library)).finish_non_exhaustive()
            }
        }

        /// The declarations of this module.
        pub(crate) const LAYOUT: &[crate::layout::Item] = &[
            $(crate::layout::Item::Function {
                name: stringify!($called),
                ty: stringify!(unsafe extern "C" fn($($carg: $cty),*) $(-> $cret)?),
            },)*
            $(crate::layout::Item::Function {
                name: stringify!($redirected),
                ty: stringify!($rty),
            },)*
            $(crate::layout::Item::Function {
                name: stringify!($optional),
                ty: stringify!($oty),
            },)*
        ];
    };
}
