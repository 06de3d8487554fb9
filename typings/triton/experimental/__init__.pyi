from . import gluon as gluon
